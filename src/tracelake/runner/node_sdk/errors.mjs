// What a function can catch. Whatever it does not catch fails the attempt, which is then retried.

class NamedError extends Error {
  constructor(message) {
    super(message);
    this.name = new.target.name;
  }
}

/** Throw it to fail the task without a retry: another attempt would fail in the same way. */
export class NonRetryable extends NamedError {}

/** A call has arguments that it cannot take. */
export class ArgumentError extends NamedError {}

/** A key would be another one in the next attempt, so the rows of a retried task would be there twice. */
export class UnstableKeyError extends NamedError {}

/** A call was refused. `code` is stable. */
export class CallError extends NamedError {
  constructor(status, code, message, details = {}) {
    super(`${code}: ${message}`);
    this.status = status;
    this.code = code;
    this.details = details ?? {};
  }
}

/** The attempt is no longer current: stop. Nothing that it does counts any more. */
export class FencedError extends CallError {}

/** A query has more rows than a reply holds. The whole result is a Parquet file at `outputLocation`. */
export class ResultTooLargeError extends NamedError {
  constructor(rowCount, outputLocation) {
    super(
      `expected a result that fits into a reply, received ${rowCount} rows: add a limit, aggregate in SQL, or get the` +
        " Parquet file at outputLocation",
    );
    this.rowCount = rowCount;
    this.outputLocation = outputLocation ?? null;
  }
}
