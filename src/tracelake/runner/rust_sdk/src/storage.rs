//! Scoped storage: whole objects of the object store, with credentials of the attempt and AWS Signature Version 4.

use std::sync::Mutex;

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::errors::{Error, Refusal};
use crate::http::{exchange_patiently, to_hex, HttpAnswer, Services};
use crate::moments::{format_basic, parse_timestamp};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Credentials with less life than this are not used any more.
const RENEW_SECONDS: f64 = 300.0;

pub(crate) struct ScopedStorage {
    /// Takes the place of the one that comes with credentials.
    endpoint: Option<String>,
    sets: Mutex<Vec<CredentialSet>>,
}

#[derive(Clone)]
struct CredentialSet {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    read_prefixes: Vec<String>,
    write_prefixes: Vec<String>,
    end: f64,
    region: String,
    endpoint: String,
}

/// Calls /v1/task/credentials for one location.
type Ask<'a> = &'a dyn Fn(&str) -> Result<Value, Error>;

impl ScopedStorage {
    pub fn new(endpoint: Option<String>) -> ScopedStorage {
        ScopedStorage { endpoint: endpoint.filter(|text| !text.is_empty()), sets: Mutex::default() }
    }

    pub fn get(&self, services: &dyn Services, ask: Ask, location: &str) -> Result<Vec<u8>, Error> {
        Ok(self.call(services, ask, "GET", location, b"")?.body)
    }

    pub fn put(&self, services: &dyn Services, ask: Ask, location: &str, data: &[u8]) -> Result<(), Error> {
        self.call(services, ask, "PUT", location, data).map(|_| ())
    }

    fn call(
        &self,
        services: &dyn Services,
        ask: Ask,
        method: &'static str,
        location: &str,
        body: &[u8],
    ) -> Result<HttpAnswer, Error> {
        let (bucket, key) = split_location(location)?;
        let keys = self.find(services, ask, method, location)?;
        let path = format!("/{bucket}/{}", quote(key));
        let endpoint = keys.endpoint.trim_end_matches('/');
        let host = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest).split('/').next().unwrap_or_default();
        let digest = sha256(body);
        let sign = || sign(&keys, method, host, &path, &digest, services.now());
        let answer = exchange_patiently(services, &sign, method, &format!("{endpoint}{path}"), body).map_err(Error::Network)?;
        if !matches!(answer.status, 200 | 204) {
            let code = if answer.status == 404 { "object_not_found" } else { "object_store_refused" };
            let message = format!("{method} of an object was answered with status {}.", answer.status);
            let refusal = Refusal { status: answer.status, code: code.into(), message, details: Map::new() };
            return Err(Error::Call(Box::new(refusal)));
        }
        Ok(answer)
    }

    /// The set of credentials whose prefix contains the location. Prefixes are directories and end in a slash.
    fn find(&self, services: &dyn Services, ask: Ask, method: &str, location: &str) -> Result<CredentialSet, Error> {
        let limit = services.now() + RENEW_SECONDS;
        self.lock().retain(|keys| keys.end > limit);
        if let Some(keys) = self.find_known(method, location) {
            return Ok(keys);
        }
        let sets = self.read_sets(&ask(location)?)?;
        self.lock().extend(sets);
        self.find_known(method, location)
            .ok_or_else(|| Error::refused(403, "prefix_forbidden", "The task may not write this location.".into(), Map::new()))
    }

    fn find_known(&self, method: &str, location: &str) -> Option<CredentialSet> {
        self.lock().iter().find(|keys| keys.opens(method, location)).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<CredentialSet>> {
        self.sets.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn read_sets(&self, reply: &Value) -> Result<Vec<CredentialSet>, Error> {
        let region = text(reply, "region")?;
        let given = reply["endpoint"].as_str().filter(|text| !text.is_empty()).map(str::to_string);
        let endpoint = self.endpoint.clone().or(given).unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let read = |keys: &Value| {
            let end = text(keys, "expires_at")?;
            Ok(CredentialSet {
                access_key_id: text(keys, "access_key_id")?,
                secret_access_key: text(keys, "secret_access_key")?,
                session_token: text(keys, "session_token")?,
                read_prefixes: texts(&keys["read_prefixes"]),
                write_prefixes: texts(&keys["write_prefixes"]),
                end: parse_timestamp(&end).ok_or_else(|| unusable("expires_at"))?,
                region: region.clone(),
                endpoint: endpoint.clone(),
            })
        };
        reply["credentials"].as_array().ok_or_else(|| unusable("credentials"))?.iter().map(read).collect()
    }
}

impl CredentialSet {
    fn opens(&self, method: &str, location: &str) -> bool {
        let contains = |prefix: &String| location.starts_with(prefix.as_str());
        self.write_prefixes.iter().any(contains) || (method != "PUT" && self.read_prefixes.iter().any(contains))
    }
}

fn sign(keys: &CredentialSet, method: &str, host: &str, path: &str, digest: &str, now: f64) -> Vec<(&'static str, String)> {
    let moment = format_basic(now);
    let scope = [&moment[..8], &keys.region, "s3", "aws4_request"];
    let mut headers = vec![
        ("host", host.to_string()),
        ("x-amz-content-sha256", digest.to_string()),
        ("x-amz-date", moment.clone()),
        ("x-amz-security-token", keys.session_token.clone()),
    ];
    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let request = format!("{method}\n{path}\n\n{lines}\n{names}\n{digest}");
    let text = format!("{ALGORITHM}\n{moment}\n{}\n{}", scope.join("/"), sha256(request.as_bytes()));
    let start = format!("AWS4{}", keys.secret_access_key).into_bytes();
    let key = scope.iter().fold(start, |key, part| hmac(&key, part));
    let signature = to_hex(&hmac(&key, &text));
    let credential = format!("{}/{}", keys.access_key_id, scope.join("/"));
    headers.push(("authorization", format!("{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}")));
    headers
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    code.update(text.as_bytes());
    code.finalize().into_bytes().to_vec()
}

pub(crate) fn sha256(data: &[u8]) -> String {
    to_hex(&Sha256::digest(data))
}

/// Bucket and key. The Dispatcher and the store check the rest.
pub(crate) fn split_location(location: &str) -> Result<(&str, &str), Error> {
    let parts = location.strip_prefix("s3://").and_then(|rest| rest.split_once('/'));
    match parts {
        Some((bucket, key)) if !bucket.is_empty() && !key.split('/').any(|part| matches!(part, "" | "." | "..")) => {
            Ok((bucket, key))
        }
        _ => Err(Error::Argument(format!("expected an address like s3://bucket/key, received {location:?}"))),
    }
}

fn quote(key: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    key.bytes().map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn text(item: &Value, name: &str) -> Result<String, Error> {
    item[name].as_str().map(str::to_string).ok_or_else(|| unusable(name))
}

fn texts(items: &Value) -> Vec<String> {
    items.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_string)).collect()
}

fn unusable(name: &str) -> Error {
    Error::Reply(format!("expected credentials, received a reply without a usable `{name}`"))
}
