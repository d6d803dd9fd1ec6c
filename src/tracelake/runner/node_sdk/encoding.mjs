// Compact JSON in the order of the fields. Unlike JSON.stringify, it writes BigInt, and refuses what JSON has not.

import { ArgumentError } from "./errors.mjs";

export function encode(value) {
  switch (typeof value) {
    case "bigint":
      return value.toString();
    case "number":
      if (!Number.isFinite(value)) throw new ArgumentError(`expected a finite number, received ${value}`);
      return JSON.stringify(value);
    case "string":
    case "boolean":
      return JSON.stringify(value);
    case "object":
      if (value === null) return "null";
      if (Array.isArray(value)) return `[${value.map((item) => encode(item ?? null)).join(",")}]`;
      if (typeof value.toJSON === "function") return encode(value.toJSON());
      return `{${Object.entries(value)
        .filter(([, item]) => item !== undefined)
        .map(([name, item]) => `${JSON.stringify(name)}:${encode(item)}`)
        .join(",")}}`;
    default:
      throw new ArgumentError(`expected a value of JSON, received a ${typeof value}`);
  }
}
