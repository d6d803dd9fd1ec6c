//! The SDK on the vectors that the SDKs of all languages share, in a clone of the repository or at `TRACE_SDK_VECTORS`.

#[path = "../examples/bootstrap/performance.rs"]
mod performance;
#[path = "../examples/bootstrap/vectors.rs"]
mod vectors;

use std::path::PathBuf;

#[test]
fn every_vector_passes() {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../../sdk/vectors");
    let directory = std::env::var_os("TRACE_SDK_VECTORS").map_or(PathBuf::from(place), PathBuf::from);
    if !directory.is_dir() {
        eprintln!("skipped: there are no vectors at {}", directory.display());
        return;
    }
    let (count, problems) = vectors::run_all(&directory);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(count > 10, "only {count} vectors");
}
