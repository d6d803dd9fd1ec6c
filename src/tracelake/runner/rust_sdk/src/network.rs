//! Exchanges over the network, each on a connection of its own: a process that Lambda froze has no connection left.

use std::io;
use std::time::Duration;

use crate::errors::Error;
use crate::http::{HttpAnswer, HttpRequest, Services};

/// A query of a task may take 300 s.
const LONGEST_CALL: Duration = Duration::from_secs(330);
const CLIENT: &str = concat!("tracelake-sdk-rust/", env!("CARGO_PKG_VERSION"));

pub(crate) struct Network {
    own: ureq::Agent,
    /// For AWS's own addresses, which the CA of a platform does not verify.
    public: ureq::Agent,
}

impl Network {
    /// `ca_file` verifies https addresses; without one, the public roots do.
    pub fn open(ca_file: Option<&str>) -> Result<Network, Error> {
        let public = open_agent(None, Some(LONGEST_CALL))?;
        let own = match ca_file {
            Some(path) => {
                let unreadable = |error| Error::Argument(format!("the file that TRACE_CA_FILE names cannot be read: {error}"));
                open_agent(Some(&std::fs::read(path).map_err(unreadable)?), Some(LONGEST_CALL))?
            }
            None => public.clone(),
        };
        Ok(Network { own, public })
    }
}

impl Services for Network {
    fn exchange(&self, request: &HttpRequest) -> io::Result<HttpAnswer> {
        let agent = if is_of_aws(request.url) { &self.public } else { &self.own };
        exchange(agent, request)
    }
}

/// Whether AWS itself answers at an address.
pub(crate) fn is_of_aws(url: &str) -> bool {
    let rest = url.strip_prefix("https://").unwrap_or_default();
    let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = place.split(':').next().unwrap_or_default();
    host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn")
}

/// A client that takes every status as an answer, follows nothing, and uses no proxy of the environment.
pub(crate) fn open_agent(ca: Option<&[u8]>, timeout: Option<Duration>) -> Result<ureq::Agent, Error> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .max_idle_connections(0)
        .proxy(None)
        .timeout_global(timeout)
        .user_agent(CLIENT);
    #[cfg(feature = "tls")]
    let config = match ca {
        Some(text) => config.tls_config(trust(text)?),
        None => config,
    };
    #[cfg(not(feature = "tls"))]
    let _ = ca;
    Ok(config.build().into())
}

#[cfg(feature = "tls")]
fn trust(text: &[u8]) -> Result<ureq::tls::TlsConfig, Error> {
    use ureq::tls::{parse_pem, PemItem, RootCerts, TlsConfig};

    let certificates: Vec<_> = parse_pem(text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(Error::Argument("the file that TRACE_CA_FILE names has no certificate in PEM form".into()));
    }
    Ok(TlsConfig::builder().root_certs(RootCerts::Specific(certificates.into())).build())
}

pub(crate) fn exchange(agent: &ureq::Agent, request: &HttpRequest) -> io::Result<HttpAnswer> {
    let mut head = ureq::http::Request::builder().method(request.method).uri(request.url);
    for (name, value) in &request.headers {
        head = head.header(*name, value);
    }
    let reply = if request.method == "GET" {
        agent.run(head.body(()).map_err(io::Error::other)?)
    } else {
        agent.run(head.body(request.body).map_err(io::Error::other)?)
    };
    let mut reply = reply.map_err(ureq::Error::into_io)?;
    let text = |value: &ureq::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = reply.headers().iter().map(|(name, value)| (name.as_str().to_string(), text(value))).collect();
    let status = reply.status().as_u16();
    let body = reply.body_mut().with_config().limit(u64::MAX).read_to_vec().map_err(ureq::Error::into_io)?;
    Ok(HttpAnswer { status, headers, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_aws_are_known_by_their_host() {
        assert!(is_of_aws("https://s3.eu-west-1.amazonaws.com/bucket/key"));
        assert!(is_of_aws("https://s3.cn-north-1.amazonaws.com.cn:443/bucket"));
        for other in
            ["https://amazonaws.com.example.org/x", "https://x.org/s3.amazonaws.com", "http://s3.eu-west-1.amazonaws.com/"]
        {
            assert!(!is_of_aws(other), "{other}");
        }
    }

    #[test]
    fn a_ca_file_that_is_not_there_is_an_error() {
        assert_eq!(Network::open(Some("/nothing/here")).err().map(|error| error.name()), Some("ArgumentError"));
    }
}
