// An alert for each transaction that minted an ERC-20 token: how much of it, and for how many receivers.
//
// It is called once for each unit of the dataset `transfers`.
import { handler } from "@tracelake/sdk";

const QUERY = `
  SELECT block_number, transaction_hash AS tx, token, to_address AS receiver, amount_string AS amount
  FROM transfers
  WHERE standard = 'erc20' AND hex(from_address) = repeat('0', 40)
  ORDER BY block_number, log_index`;

export const handle = handler(async (task) => {
  const alerts = new Map();
  for (const { block_number, tx, token, receiver, amount } of await task.query(QUERY)) {
    // The key is the transaction and the token: a task that is tried again publishes the same rows.
    const key = `${tx} ${token}`;
    const alert = alerts.get(key) ?? { block_number, tx, token, receivers: new Set(), amount: 0n };
    alert.receivers.add(receiver);
    alert.amount += BigInt(amount);
    alerts.set(key, alert);
  }
  const rows = [...alerts.values()].map((alert) => ({
    ...alert,
    receivers: alert.receivers.size,
    amount: String(alert.amount),
  }));
  await task.publish(rows, { key: ["tx", "token"] });
  task.log("mints", { alerts: rows.length });
});
