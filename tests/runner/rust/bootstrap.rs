// A function in Rust for tests: an AWS Lambda custom runtime on the standard library alone.
//
// Built by `rustc -O -C panic=abort -C strip=symbols -C lto -C target-feature=+crt-static bootstrap.rs`.
// It answers with its event; an event `"fail"` is an error, and `"memory"` takes what it can get.

use std::io::{Read, Write};
use std::net::TcpStream;

const PREFIX: &str = "/2018-06-01/runtime";

fn exchange(method: &str, path: &str, body: &[u8]) -> std::io::Result<(String, Vec<u8>)> {
    let address = std::env::var("AWS_LAMBDA_RUNTIME_API").expect("an address");
    let mut connection = TcpStream::connect(&address)?;
    let length = body.len();
    let head = format!("{method} {PREFIX}{path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    connection.write_all(head.as_bytes())?;
    connection.write_all(body)?;
    let mut reply = Vec::new();
    connection.read_to_end(&mut reply)?;
    let end = reply.windows(4).position(|part| part == b"\r\n\r\n").expect("a head") + 4;
    Ok((String::from_utf8_lossy(&reply[..end]).to_lowercase(), reply[end..].to_vec()))
}

fn main() -> std::io::Result<()> {
    loop {
        let (head, event) = exchange("GET", "/invocation/next", b"")?;
        let id = head.split("\r\n").find_map(|line| line.strip_prefix("lambda-runtime-aws-request-id: ")).expect("an id");
        println!("an event of {} bytes", event.len());
        if event == b"\"memory\"" {
            let mut all: Vec<Vec<u8>> = Vec::new();
            loop {
                all.push(vec![1; 1 << 20]);
            }
        }
        if event == b"\"fail\"" {
            exchange("POST", &format!("/invocation/{id}/error"), br#"{"errorType":"Failure","errorMessage":"on purpose"}"#)?;
        } else {
            exchange("POST", &format!("/invocation/{id}/response"), &event)?;
        }
    }
}
