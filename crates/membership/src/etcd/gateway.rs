//! Gateway: etcd's calls as JSON over HTTP, which each member of an etcd cluster answers.
//!
//! The calls of gRPC would need a compiler for their descriptions on each machine that builds this. Keys and values are base64,
//! numbers of 64 bits are text.

use super::access::EtcdAccess;
use crate::lock_class::REGISTRY;
use crate::words::{of_http, of_io};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use sluice_sync::Mutex;
use sluice_sync::atomic::{AtomicUsize, Ordering};
use sluice_sync::time::Duration;
use std::io::{self, BufRead, BufReader, Read};
use ureq::{Agent, Body, Timeout};

/// The longest answer, or line of a stream, in bytes.
const ANSWER_MAX: u64 = 16 << 20;
/// The call that must not be repeated.
const TRANSACTION: &str = "kv/txn";

/// The members of an etcd cluster, of which the one that answered last is asked.
pub(super) struct Gateway {
    /// `SCHEME://HOST:PORT` each. *immutable*
    endpoints: Vec<String>,
    /// The index of the member to ask. *atomic (stands alone)*
    current: AtomicUsize,
    agent: Agent,
    /// How long a call may take. *immutable*
    patience: Duration,
    /// *immutable*
    user: Option<(String, String)>,
    /// The last token that etcd gave the user. *protected by its mutex*
    token: Mutex<String>,
}

impl Gateway {
    /// A gateway to the members that `access` names.
    ///
    /// # Errors
    /// `InvalidInput` without a member, for another scheme, and for invalid files.
    pub(super) fn new(access: &EtcdAccess, patience: Duration) -> io::Result<Gateway> {
        let endpoints = access.urls()?;
        let config =
            Agent::config_builder().http_status_as_error(false).proxy(None).tls_config(access.tls()?);
        let (current, token) = (AtomicUsize::new(0), Mutex::with_class(&REGISTRY, String::new()));
        Ok(Gateway {
            endpoints,
            current,
            agent: config.build().into(),
            patience,
            user: access.user.clone(),
            token,
        })
    }

    /// How many there are to ask.
    pub(super) fn members(&self) -> usize {
        self.endpoints.len()
    }

    /// Does `changes` if all `conditions` hold: the revision that did it.
    ///
    /// # Errors
    /// Errors of [`call`](Self::call).
    pub(super) fn transact(&self, conditions: &[Value], changes: &[Value]) -> io::Result<Option<u64>> {
        let answer = self.call(TRANSACTION, &json!({"compare": conditions, "success": changes}))?;
        let is_done = answer["succeeded"].as_bool() == Some(true);
        Ok(is_done.then(|| number(&answer["header"], "revision")))
    }

    /// Calls `method`. A member that refuses the connection or gives no answer is passed over, but a transaction that a
    /// member may have received is not sent again.
    ///
    /// # Errors
    /// Errors of etcd and of the network: then the outcome is unknown.
    pub(super) fn call(&self, method: &str, arguments: &Value) -> io::Result<Value> {
        let once = || {
            let mut text = Vec::new();
            self.post(method, arguments, self.patience)?
                .as_reader()
                .take(ANSWER_MAX)
                .read_to_end(&mut text)
                .map_err(|error| io::Error::other(format!("etcd does not answer: {}", of_io(&error))))?;
            serde_json::from_slice(&text).map_err(unlike_etcd)
        };
        let attempts = if method == TRANSACTION { 1 } else { self.endpoints.len() };
        let mut outcome = once();
        for _ in 1..attempts {
            if outcome.is_ok() {
                break;
            }
            outcome = once();
        }
        outcome
    }

    /// Calls `method`, and shows each line of its answer to `visit`, until that says false, the stream ends, or `time` is over.
    ///
    /// # Errors
    /// Errors of [`call`](Self::call). That the time is over is one.
    pub(super) fn stream(
        &self,
        method: &str,
        arguments: &Value,
        time: Duration,
        visit: &mut dyn FnMut(&Value) -> bool,
    ) -> io::Result<()> {
        let mut body = self.post(method, arguments, time)?;
        let mut lines = BufReader::new(body.as_reader());
        let mut line = Vec::new();
        let told = |error: io::Error| io::Error::new(error.kind(), of_io(&error));
        while (&mut lines).take(ANSWER_MAX).read_until(b'\n', &mut line).map_err(told)? > 0 {
            if !visit(&serde_json::from_slice(&line).map_err(unlike_etcd)?) {
                break;
            }
            line.clear();
        }
        Ok(())
    }

    fn post(&self, method: &str, arguments: &Value, time: Duration) -> io::Result<Body> {
        let token = self.token.lock().clone();
        match self.post_with(&token, method, arguments, time)? {
            Ok(body) => Ok(body),
            Err(error) => {
                let Some((name, password)) = &self.user else { return Err(error) };
                let asked = json!({"name": name, "password": password});
                let mut text = Vec::new();
                let mut body = self.post_with("", "auth/authenticate", &asked, self.patience)??;
                let read = body.as_reader().take(ANSWER_MAX).read_to_end(&mut text);
                read.map_err(|error| io::Error::new(error.kind(), of_io(&error)))?;
                let answer: Value = serde_json::from_slice(&text).map_err(unlike_etcd)?;
                let token = answer["token"].as_str().unwrap_or_default().to_owned();
                *self.token.lock() = token.clone();
                self.post_with(&token, method, arguments, time)?
            }
        }
    }

    /// As a user with this token. The inner error is etcd's, if it does not take the token.
    fn post_with(
        &self,
        token: &str,
        method: &str,
        arguments: &Value,
        time: Duration,
    ) -> io::Result<io::Result<Body>> {
        let arguments = serde_json::to_vec(arguments)?;
        let mut last = None;
        for _ in 0..self.endpoints.len() {
            // Relaxed: any member will do.
            let at = self.current.load(Ordering::Relaxed) % self.endpoints.len();
            let endpoint = &self.endpoints[at];
            let request = self.agent.post(format!("{endpoint}/v3/{method}")).content_type("application/json");
            let request = if token.is_empty() { request } else { request.header("authorization", token) };
            let connect = time.min(self.patience) / self.endpoints.len() as u32;
            let request = request.config().timeout_connect(Some(connect)).timeout_global(Some(time)).build();
            match request.send(&arguments[..]) {
                Ok(answer) if answer.status().is_success() => return Ok(Ok(answer.into_body())),
                Ok(answer) => {
                    let status = answer.status();
                    let mut text = String::new();
                    // The text of the answer is for people only.
                    let _ = answer.into_body().into_reader().take(500).read_to_string(&mut text);
                    let said: Value = serde_json::from_str(&text).unwrap_or_default();
                    let unlike = format!("{status}, as no etcd does: is that its address?");
                    let said = said["message"].as_str().unwrap_or(&unlike);
                    let error = io::Error::other(format!("etcd at {endpoint}: {said}"));
                    // The request had no token, or a token that etcd has forgotten.
                    if status == 401 || said.contains("user name is empty") {
                        return Ok(Err(error));
                    }
                    self.pass_over(at);
                    return Err(error);
                }
                Err(error) => {
                    self.pass_over(at);
                    let was_sent = !matches!(
                        error,
                        ureq::Error::ConnectionFailed
                            | ureq::Error::HostNotFound
                            | ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve)
                    ) && !is_refused(&error);
                    let said = of_http(&error);
                    let error = io::Error::other(format!("etcd at {endpoint} does not answer: {said}"));
                    if was_sent {
                        return Err(error);
                    }
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| io::Error::other("no etcd is named")))
    }

    /// Asks another member than the one `at` next time.
    fn pass_over(&self, at: usize) {
        // Relaxed: as in post().
        self.current.store(at + 1, Ordering::Relaxed);
    }
}

fn is_refused(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Text as etcd takes it.
pub(super) fn bytes(text: &str) -> Value {
    json!(BASE64.encode(text))
}

/// The text in `field` of `value`; empty if it is none.
pub(super) fn text(value: &Value, field: &str) -> String {
    let decoded = value[field].as_str().and_then(|text| BASE64.decode(text).ok());
    decoded.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

/// The number in `field` of `value`; 0 if the field is missing, as etcd omits zeros.
pub(super) fn number(value: &Value, field: &str) -> u64 {
    let found = &value[field];
    found.as_u64().or_else(|| found.as_str()?.parse().ok()).unwrap_or(0)
}

/// The error for an answer that is not JSON.
fn unlike_etcd(_: serde_json::Error) -> io::Error {
    io::Error::other("the server answers as no etcd does: is that its address?")
}
