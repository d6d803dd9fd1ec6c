//! HTTP of the SDK: one exchange, and what is repeated.

use std::fmt::Write as _;
use std::io;
use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const TRIES: u32 = 6;
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// All calls of the SDK may be repeated: they are idempotent.
const REPEATED: [u16; 4] = [500, 502, 503, 504];

/// A request of the SDK.
#[derive(Debug)]
pub struct HttpRequest<'a> {
    /// `GET`, `POST` or `PUT`.
    pub method: &'static str,
    /// The whole address.
    pub url: &'a str,
    /// Names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// Empty for GET.
    pub body: &'a [u8],
}

/// The answer to a request.
#[derive(Debug, Clone, Default)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl HttpAnswer {
    /// The value of a header; its name is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// What a task needs of the world. Tests of functions replace it.
pub trait Services: Send + Sync {
    /// One exchange, without repetition; an error means that there is no answer.
    fn exchange(&self, request: &HttpRequest) -> io::Result<HttpAnswer>;

    /// Seconds since 1970.
    fn now(&self) -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map(|time| time.as_secs_f64()).unwrap_or_default()
    }

    /// Waits before a call is repeated.
    fn sleep(&self, wait: Duration) {
        std::thread::sleep(wait);
    }

    /// Writes a line of the log, which ends in a line feed.
    fn write_log(&self, line: &str) {
        // There is nowhere to report it, and a log that cannot be written fails nothing.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// Repeats the call while nobody answers or a store is away. Headers are made anew, since signatures have a time.
pub(crate) fn exchange_patiently(
    services: &dyn Services,
    make_headers: &dyn Fn() -> Vec<(&'static str, String)>,
    method: &'static str,
    url: &str,
    body: &[u8],
) -> io::Result<HttpAnswer> {
    let mut wait = FIRST_WAIT;
    for _ in 1..TRIES {
        match services.exchange(&HttpRequest { method, url, headers: make_headers(), body }) {
            Ok(answer) if !REPEATED.contains(&answer.status) => return Ok(answer),
            _ => services.sleep(wait),
        }
        wait = (wait * 2).min(LONGEST_WAIT);
    }
    services.exchange(&HttpRequest { method, url, headers: make_headers(), body })
}

pub(crate) fn to_hex(data: &[u8]) -> String {
    data.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
