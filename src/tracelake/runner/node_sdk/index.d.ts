/** The SDK of Trace functions. */

export interface FunctionInput {
  readonly name: string;
  readonly unit: {
    readonly cursor?: { readonly after: number; readonly to: number };
    readonly partition_key?: string;
    readonly start?: number;
    readonly end?: number;
  };
  readonly revision: string;
  readonly where: Record<string, unknown> | null;
  readonly datasetUuid: string;
  readonly datasetVersion: string;
}

export interface FunctionOutput {
  readonly index: number;
  readonly name: string;
  readonly kind: "s3" | "buffered" | "postgres" | "none";
  /** Where files (`s3`) or batches (`buffered`) are written. */
  readonly prefix: string | null;
  readonly datasetUuid: string;
  readonly datasetVersion: string;
}

export type ParameterValue =
  | boolean
  | number
  | bigint
  | string
  | Uint8Array
  | { type: string; value: string | number | boolean | null };

export interface HeartbeatReply {
  cancel: boolean;
  pause: boolean;
  lease_expires_at: string;
}

export declare class FunctionTask {
  readonly taskId: string;
  readonly attempt: number;
  readonly config: Record<string, unknown>;
  readonly inputs: readonly FunctionInput[];
  readonly outputs: readonly FunctionOutput[];
  /** The prefix for files of this attempt that nobody else reads. */
  readonly scratch: string;

  /** Rows of a SELECT over the inputs, each of which has the name of its dataset. */
  query<Row = Record<string, unknown>>(
    sql: string,
    parameters?: Record<string, ParameterValue>,
    options?: { limit?: number },
  ): Promise<Row[]>;
  /** The result as an Arrow IPC stream. */
  queryArrow(
    sql: string,
    parameters?: Record<string, ParameterValue>,
    options?: { limit?: number },
  ): Promise<Uint8Array>;
  /** An object: `s3://bucket/key`, or a name below `scratch`. */
  get(location: string): Promise<Uint8Array>;
  /** Write an object, whole; returns its address. */
  put(location: string, data: Uint8Array | string): Promise<string>;
  /** Publish rows of a buffered dataset; returns their number. `key` names the columns of the declared key. */
  publish(
    rows: Iterable<Record<string, unknown>>,
    options: { key: string | string[]; output?: number | string },
  ): Promise<number>;
  /** Write the Parquet files of the task's unit. They are committed, and announced, when the task completes. */
  publishFiles(files: Record<string, Uint8Array>, options?: { output?: number | string }): Promise<void>;
  /** Announce an update of an output without files; by default the unit of the task. */
  emit(options?: {
    output?: number | string;
    cursor?: number;
    partitionKey?: string;
    start?: number;
    end?: number;
    revision?: string;
  }): Promise<void>;
  /** Extend the lease. `cancel` asks the function to stop. */
  heartbeat(): Promise<HeartbeatReply>;
  /** One line of JSON on standard error, which is kept as the log of the run. */
  log(message: string, fields?: { level?: string; [name: string]: unknown }): void;
}

/** Makes a Lambda handler of a function that takes its task. */
export declare function handler(
  run: (task: FunctionTask) => unknown,
): (event: unknown, context?: unknown) => Promise<Record<string, unknown[]>>;

/** Throw it to fail the task without a retry. */
export declare class NonRetryable extends Error {}
export declare class ArgumentError extends Error {}
export declare class UnstableKeyError extends Error {}
export declare class CallError extends Error {
  readonly status: number;
  readonly code: string;
  readonly details: Record<string, unknown>;
}
export declare class FencedError extends CallError {}
export declare class ResultTooLargeError extends Error {
  readonly rowCount: number;
  readonly outputLocation: string | null;
}
