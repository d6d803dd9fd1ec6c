// Keys of rows: refused if they are derived from the attempt or from the time of its run.
//
// A retried task publishes its rows again, and the table tells them by their key. Times between the start of the attempt
// and now cannot come from the data, which was there before.

import { UnstableKeyError } from "./errors.mjs";

const HASH = /0x[0-9a-f]+|[0-9a-f]{32,}/gi; // may contain any digits by chance
const NUMBER = /(?<![0-9.])([0-9]{10,19})(\.[0-9]+)?(?![0-9])/g;
const UNITS = new Map([[10, 1n], [13, 1000n], [16, 1000000n], [19, 1000000000n]]);
const TIME = /([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?/g;

export class KeyRules {
  #secrets;
  #attempt;
  #startedAt;

  constructor({ taskId, attempt, leaseToken, token, startedAt }) {
    this.#secrets = [["lease_token", leaseToken.toLowerCase()], ["capability token", token.toLowerCase()]];
    const id = taskId.toLowerCase().replace(/[^0-9a-z-]/g, "\\$&");
    this.#attempt = new RegExp(`(attempt[^0-9a-z]{0,3}|${id}[^0-9a-z])${attempt}(?![0-9])`);
    this.#startedAt = startedAt;
  }

  /** Throws at the first key that another attempt would not have. */
  check(rows, columns, now) {
    rows.forEach((row, index) => {
      for (const name of columns) {
        const value = row[name];
        if (value === null || value === undefined) {
          throw new UnstableKeyError(`row ${index + 1}: the key column ${name} has no value`);
        }
        const reason = this.findReason(String(value), now);
        if (reason !== null) {
          throw new UnstableKeyError(
            `row ${index + 1}: the key column ${name} contains ${reason}, which changes with the next attempt: derive the` +
              " key from the data or from the unit",
          );
        }
      }
    });
  }

  findReason(text, now) {
    const lower = text.toLowerCase();
    for (const [name, secret] of this.#secrets) if (secret && lower.includes(secret)) return `the ${name}`;
    if (this.#attempt.test(lower)) return "the number of the attempt";
    return this.#hasTime(text, now) ? "the time of the run" : null;
  }

  #hasTime(text, now) {
    const first = Math.floor(this.#startedAt);
    for (const [, digits, fraction] of text.replace(HASH, " ").matchAll(NUMBER)) {
      const unit = UNITS.get(digits.length);
      if (unit === undefined) continue;
      const number = BigInt(digits);
      const rest = Number(number % unit) + (fraction ? Number(fraction) : 0);
      const seconds = Number(number / unit) + rest / Number(unit);
      if (first <= seconds && seconds <= now) return true;
    }
    for (const [, date, time, fraction] of text.matchAll(TIME)) {
      const seconds = Date.parse(`${date}T${time}Z`) / 1000 + (fraction ? Number(fraction) : 0);
      if (first <= seconds && seconds <= now) return true;
    }
    return false;
  }
}
