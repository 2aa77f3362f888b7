//! Gateway: etcd's calls as JSON over HTTP, which each member of an etcd cluster answers.
//!
//! The calls of gRPC would need a compiler for their descriptions on each machine that builds this. Keys and values are base64,
//! numbers of 64 bits are text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use sluice_sync::atomic::{AtomicUsize, Ordering};
use sluice_sync::time::Duration;
use std::io::{self, BufRead, BufReader, Read};
use ureq::{Agent, Body, Timeout};

/// The longest answer, or line of a stream, in bytes.
const ANSWER_MAX: u64 = 16 << 20;

/// The members of an etcd cluster, of which the one that answered last is asked.
pub(super) struct Gateway {
    /// `http://HOST:PORT` each. *immutable*
    endpoints: Vec<String>,
    /// Which one is asked. *atomic (stands alone)*
    current: AtomicUsize,
    agent: Agent,
    /// How long a call may take. *immutable*
    patience: Duration,
}

impl Gateway {
    /// Of these members, each `HOST:PORT` or `http://HOST:PORT`.
    ///
    /// # Errors
    /// `InvalidInput` without one, or for another scheme.
    pub(super) fn new(endpoints: &[String], patience: Duration) -> io::Result<Gateway> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let address = |one: &String| match one.split_once("://") {
            None => Ok(format!("http://{one}")),
            Some(("http", _)) => Ok(one.trim_end_matches('/').to_owned()),
            Some(_) => Err(invalid(format!("{one}: an etcd is reached by http://HOST:PORT"))),
        };
        let endpoints: Vec<String> = endpoints.iter().map(address).collect::<io::Result<_>>()?;
        if endpoints.is_empty() {
            return Err(invalid("no etcd is named".into()));
        }
        let config = Agent::config_builder().http_status_as_error(false).proxy(None).build();
        Ok(Gateway { endpoints, current: AtomicUsize::new(0), agent: config.into(), patience })
    }

    /// Calls `method`. A member that does not listen is passed over; a call that one may have got is not made again.
    ///
    /// # Errors
    /// etcd's, and the network's: then nothing is known of what became of it.
    pub(super) fn call(&self, method: &str, arguments: &Value) -> io::Result<Value> {
        let mut body = self.post(method, arguments, self.patience)?;
        let mut text = Vec::new();
        body.as_reader().take(ANSWER_MAX).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Calls `method`, and shows each line of its answer to `visit`, until that says false, the stream ends, or `time` is over.
    ///
    /// # Errors
    /// As [`call`](Self::call). That the time is over is one.
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
        while (&mut lines).take(ANSWER_MAX).read_until(b'\n', &mut line)? > 0 {
            if !visit(&serde_json::from_slice(&line)?) {
                break;
            }
            line.clear();
        }
        Ok(())
    }

    fn post(&self, method: &str, arguments: &Value, time: Duration) -> io::Result<Body> {
        let arguments = serde_json::to_vec(arguments)?;
        let mut last = None;
        for _ in 0..self.endpoints.len() {
            // Relaxed: any member will do.
            let at = self.current.load(Ordering::Relaxed) % self.endpoints.len();
            let url = format!("{}/v3/{method}", self.endpoints[at]);
            let request = self.agent.post(url).content_type("application/json");
            let connect = time.min(self.patience) / self.endpoints.len() as u32;
            let request = request.config().timeout_connect(Some(connect)).timeout_global(Some(time)).build();
            match request.send(&arguments[..]) {
                Ok(answer) if answer.status().is_success() => return Ok(answer.into_body()),
                Ok(answer) => {
                    let status = answer.status();
                    let mut text = String::new();
                    // What it says is for people only.
                    let _ = answer.into_body().into_reader().take(500).read_to_string(&mut text);
                    self.pass_over(at);
                    return Err(io::Error::other(format!("etcd: {status}: {}", text.trim())));
                }
                Err(error) => {
                    self.pass_over(at);
                    let was_sent = !matches!(
                        error,
                        ureq::Error::ConnectionFailed
                            | ureq::Error::HostNotFound
                            | ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve)
                    ) && !is_refused(&error);
                    let error = io::Error::other(format!("etcd at {}: {error}", self.endpoints[at]));
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

/// The number in `field` of `value`; 0 if there is none, as etcd leaves it out.
pub(super) fn number(value: &Value, field: &str) -> u64 {
    let found = &value[field];
    found.as_u64().or_else(|| found.as_str()?.parse().ok()).unwrap_or(0)
}
