//! What each token did in a range of blocks: its transfers, who took part, and its share of all transfers.
//!
//! It is called once for each unit of the dataset `transfers`, and publishes a row for each token.

use serde_json::{json, Value};
use tracelake_sdk::{run, Error, FunctionTask};

const QUERY: &str = "
    SELECT token, standard, count(*) AS transfers,
           count(DISTINCT from_address) AS senders, count(DISTINCT to_address) AS receivers
    FROM transfers GROUP BY token, standard ORDER BY transfers DESC, token";

fn total_tokens(task: &FunctionTask) -> Result<(), Error> {
    let first_block = task.inputs[0].unit.start;
    let tokens = task.query(QUERY)?;
    let count = |value: &Value| value.as_i64().unwrap_or_default();
    let all: i64 = tokens.iter().map(|token| count(&token["transfers"])).sum();
    // The key is the unit and the token: a task that is tried again publishes the same rows.
    let totals: Vec<Value> = tokens
        .iter()
        .map(|token| {
            json!({
                "first_block": first_block,
                "token": token["token"],
                "standard": token["standard"],
                "transfers": token["transfers"],
                "senders": token["senders"],
                "receivers": token["receivers"],
                "share": count(&token["transfers"]) as f64 / all as f64,
            })
        })
        .collect();
    task.publish(&totals, &["first_block", "token", "standard"])?;
    task.log_with("info", "totals", json!({"tokens": totals.len(), "transfers": all}));
    Ok(())
}

fn main() {
    run(total_tokens)
}
