// What AWS's runtime for Node does, in its shortest form: events one after the other in one process.

const place = `http://${process.env.AWS_LAMBDA_RUNTIME_API}/2018-06-01/runtime/invocation`;
const [file, name] = process.env._HANDLER.split(".");
const handler = (await import(`${process.env.LAMBDA_TASK_ROOT}/${file}.mjs`))[name];

for (;;) {
  const next = await fetch(`${place}/next`);
  const id = next.headers.get("lambda-runtime-aws-request-id");
  process.env._X_AMZN_TRACE_ID = next.headers.get("lambda-runtime-trace-id");
  try {
    const result = await handler(await next.json(), { awsRequestId: id });
    await fetch(`${place}/${id}/response`, { method: "POST", body: JSON.stringify(result ?? null) });
  } catch (error) {
    const body = { errorType: error.name, errorMessage: error.message, stackTrace: [] };
    await fetch(`${place}/${id}/error`, { method: "POST", body: JSON.stringify(body) });
  }
}
