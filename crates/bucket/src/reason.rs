//! Reason: what an error of an object store says to a person, and what can be done about it.
//!
//! The libraries below tell requests, retries and pages of XML. Only the server's own code counts, which the server's
//! documentation explains.

use std::error::Error;
use std::{fmt, io};

/// A code of S3's, and what can be done.
const CURES: [(&str, &str); 14] = [
    ("NoSuchBucket", "make the bucket first, or mend its name in the address"),
    (
        "InvalidBucketName",
        "mend the bucket's name in the address: 3 to 63 small letters, digits, dots and hyphens",
    ),
    ("AccessDenied", "the key may not do that: it needs to list, get, put and delete objects of the bucket"),
    ("InvalidAccessKeyId", "the server does not know the key: see AWS_ACCESS_KEY_ID"),
    // Code of versitygw.
    ("XAdminUserNotFound", "the server does not know the key: see AWS_ACCESS_KEY_ID"),
    ("SignatureDoesNotMatch", "the secret is not that of the key: see AWS_SECRET_ACCESS_KEY"),
    ("InvalidToken", "see AWS_SESSION_TOKEN"),
    ("ExpiredToken", "get a new AWS_SESSION_TOKEN"),
    ("RequestTimeTooSkewed", "set this machine's clock"),
    ("AuthorizationHeaderMalformed", "see AWS_REGION"),
    ("PermanentRedirect", "the bucket is elsewhere: see AWS_REGION and AWS_ENDPOINT_URL"),
    ("SlowDown", "the server has too much to do: try again later"),
    ("ServiceUnavailable", "the server has too much to do: try again later"),
    ("NotImplemented", "the server lacks something that a store needs, such as conditional writes"),
];

/// Whether `error` says that there is no room.
pub(crate) fn is_full(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
        || error.source().is_some_and(is_full)
}

/// A sealed object is not as it was written.
#[derive(Debug)]
pub(crate) struct Unsealed(pub(crate) String);

impl fmt::Display for Unsealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is damaged: it is not what was encrypted", self.0)
    }
}

impl Error for Unsealed {}

/// Whether `error` says that an object is not as it was written.
pub(crate) fn is_unsealed(error: &(dyn Error + 'static)) -> bool {
    error.is::<Unsealed>() || error.source().is_some_and(is_unsealed)
}

/// A one-line text of `error` for a person. An error of the system below stays what it is.
pub(crate) fn reason(error: &(dyn Error + 'static)) -> io::Error {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(one) = next {
        if let Some(code) = one.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error)
            && !text.contains("HTTP error")
        {
            return io::Error::from_raw_os_error(code);
        }
        text.push_str(&one.to_string());
        text.push('\n');
        next = one.source();
    }
    io::Error::other(told(&text))
}

/// The one-line reason for the `text` of an error and its causes.
fn told(text: &str) -> String {
    if text.contains("//169.254.169.254/") {
        return "there are no keys for S3 (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them to ~/.aws/credentials)"
            .to_owned();
    }
    let server = server(text).map_or_else(|| "the server".to_owned(), |at| format!("the server {at}"));
    if let Some(code) = code(text) {
        let cure = CURES.iter().find(|(known, _)| *known == code).map(|(_, cure)| format!(" ({cure})"));
        return format!("{server} says {code}{}", cure.unwrap_or_default());
    }
    if text.contains("Received redirect without LOCATION") {
        return format!("{server} says that the bucket is elsewhere (see AWS_REGION and AWS_ENDPOINT_URL)");
    }
    if let Some(status) = between(text, "non-2xx status code: ", ":") {
        return format!("{server} says {}", brief(status));
    }
    if text.contains("peer certificate") {
        let cure = "let this machine trust the authority that signed it, or use the name that it is for";
        return format!("the certificate of {server} cannot be believed ({cure})");
    }
    if ["invalid HTTP", "message head", "InvalidContentType"].iter().any(|part| text.contains(part)) {
        return format!(
            "{server} does not speak HTTP (is it http or https, and the port? see AWS_ENDPOINT_URL)"
        );
    }
    if text.contains("HTTP error: ") {
        let is_late = ["timed out", "TimedOut"].iter().any(|late| text.contains(late));
        let what = if is_late { "does not answer in time" } else { "cannot be reached" };
        return format!("{server} {what} (is it there? AWS_ENDPOINT_URL names it)");
    }
    if text.starts_with("Generic S3 error: ") {
        return format!("{server} answers as no object store does (is it one? AWS_ENDPOINT_URL names it)");
    }
    let text = brief(text);
    match text.strip_prefix("Generic ").and_then(|rest| rest.split_once(" error: ")) {
        Some((_, rest)) => rest.to_owned(),
        None => text,
    }
}

/// The code of S3's that a server answered with.
pub(crate) fn code(text: &str) -> Option<&str> {
    between(text, "<Code>", "</Code>").filter(|code| code.chars().all(char::is_alphanumeric))
}

/// The scheme, host and port that a request went to.
fn server(text: &str) -> Option<&str> {
    let at = ["http://", "https://"]
        .iter()
        .filter_map(|scheme| text.find(scheme).map(|at| (at, scheme.len())))
        .min()?;
    let rest = &text[at.0..];
    let end = rest[at.1..].find(['/', ' ', '\n', ')', '?']).map_or(rest.len(), |end| at.1 + end);
    Some(&rest[..end])
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split(after).next()
}

/// The first line of a text, without the page that a server sends with it: that has many lines, and may name the key of the caller.
pub(crate) fn brief(text: &str) -> String {
    const CHARS: usize = 300;
    let line = text.split(['<', '\n']).next().unwrap_or_default();
    line.trim_end_matches([':', ' ']).chars().take(CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &str = "Generic S3 error: Error performing GET http://s3.example:9000/bucket/x in 2ms, after 2 retries, max_retries: 2, \
                       retry_timeout: 20s  - ";

    #[test]
    fn a_refusal_is_told_by_its_code_and_a_cure_and_nothing_of_its_page() {
        for (code, cure) in CURES {
            let page = format!(
                "Server returned non-2xx status code: 403 Forbidden: <?xml version=\"1.0\"?>\n<Error><Code>{code}</Code>\
                 <AWSAccessKeyId>KEY</AWSAccessKeyId></Error>"
            );
            assert_eq!(
                told(&format!("{GET}{page}")),
                format!("the server http://s3.example:9000 says {code} ({cure})")
            );
        }
        let unknown = format!("{GET}Server returned error response: <Error><Code>Novel</Code></Error>");
        assert_eq!(told(&unknown), "the server http://s3.example:9000 says Novel");
        let plain = format!("{GET}Server returned non-2xx status code: 502 Bad Gateway: <html>");
        assert_eq!(told(&plain), "the server http://s3.example:9000 says 502 Bad Gateway");
    }

    #[test]
    fn a_server_that_cannot_be_reached_and_keys_that_are_missing_are_told_with_a_cure() {
        let away = told(&format!("{GET}HTTP error: error sending request\nConnection refused"));
        assert!(away.starts_with("the server http://s3.example:9000 cannot be reached (is it"), "{away}");
        let late = told(&format!("{GET}HTTP error: request or response body error\noperation timed out"));
        assert!(late.contains("does not answer in time"), "{late}");
        let redirect = told(&format!("{GET}Received redirect without LOCATION, this normally"));
        assert!(redirect.contains("AWS_REGION"), "{redirect}");
        let keys = told(
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 2ms - HTTP",
        );
        assert!(keys.contains("AWS_ACCESS_KEY_ID") && !keys.contains("169"), "{keys}");
        assert_eq!(told("Generic faulty error: timed out"), "timed out");
        for (raw, cure) in [
            (
                "HTTP error: error sending request\ninvalid peer certificate: Other(OtherError(CaUsedAsEndEntity))",
                "let this machine trust the authority that signed it",
            ),
            (
                "HTTP error: error sending request\ninvalid HTTP version parsed",
                "does not speak HTTP (is it http or https",
            ),
            (
                "Got invalid list response: unexpected end of stream",
                "answers as no object store does (is it one?",
            ),
        ] {
            let told = told(&format!("{GET}{raw}"));
            assert!(told.contains(cure) && !told.contains("OtherError"), "{told}");
        }
    }

    #[test]
    fn an_error_of_the_system_stays_what_it_is() {
        let full = io::Error::from_raw_os_error(28);
        let error = object_store::Error::Generic { store: "LocalFileSystem", source: Box::new(full) };
        assert_eq!(reason(&error).raw_os_error(), Some(28));
    }
}
