// Compiles contracts/*.sol and prints {contract: {code, selectors}} as JSON. Usage: node compile.mjs CONTRACTS_DIR
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const solc = createRequire(join(process.cwd(), "package.json"))("solc");
const folder = process.argv[2];
const sources = Object.fromEntries(
  readdirSync(folder)
    .filter((name) => name.endsWith(".sol"))
    .sort()
    .map((name) => [name, { content: readFileSync(join(folder, name), "utf8") }]),
);
const output = JSON.parse(
  solc.compile(
    JSON.stringify({
      language: "Solidity",
      sources,
      settings: {
        evmVersion: "cancun",
        optimizer: { enabled: true, runs: 200 },
        metadata: { appendCBOR: false },
        outputSelection: { "*": { "*": ["evm.bytecode.object", "evm.methodIdentifiers"] } },
      },
    }),
  ),
);
const problems = output.errors ?? [];
if (problems.length) {
  console.error(problems.map((problem) => problem.formattedMessage).join("\n"));
  process.exit(1);
}
const contracts = {};
for (const file of Object.values(output.contracts))
  for (const [name, made] of Object.entries(file))
    contracts[name] = { code: made.evm.bytecode.object, selectors: made.evm.methodIdentifiers };
console.log(JSON.stringify({ solc: solc.version(), contracts }));
