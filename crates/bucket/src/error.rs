//! Errors: those of SlateDB and of an object store as errors of a store.

use crate::reason::{brief, is_full, is_unsealed, reason};
use rustix::io::Errno;
use slatedb::{CloseReason, ErrorKind};
use sluice_store::StoreError;
use std::error::Error;
use std::io;

/// Translates an error of SlateDB during the action `what`.
pub(crate) fn of_records(what: &'static str) -> impl FnOnce(slatedb::Error) -> StoreError {
    move |error| match error.kind() {
        _ if is_full(&error) => StoreError::Io(what, Errno::NOSPC.into()),
        _ if is_unsealed(&error) => damaged(what, &error),
        ErrorKind::Closed(CloseReason::Fenced) => StoreError::Superseded,
        ErrorKind::Unavailable => StoreError::Io(what, reason(&error)),
        ErrorKind::Closed(_) | ErrorKind::Transaction => {
            failed(&format!("could not {what}: {}", brief(&error.to_string())))
        }
        _ => StoreError::Damaged(format!("could not {what}: {}", brief(&error.to_string()))),
    }
}

/// Translates an error of an object store during the action `what`.
pub(crate) fn of_objects(what: &'static str) -> impl FnOnce(object_store::Error) -> StoreError {
    move |error| {
        if is_full(&error) {
            return StoreError::Io(what, Errno::NOSPC.into());
        }
        if is_unsealed(&error) {
            return damaged(what, &error);
        }
        let kind = match &error {
            object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
            object_store::Error::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                io::ErrorKind::PermissionDenied
            }
            _ => io::ErrorKind::Other,
        };
        let told = reason(&error);
        let is_system = told.raw_os_error().is_some();
        StoreError::Io(what, if is_system { told } else { io::Error::new(kind, told.to_string()) })
    }
}

/// An error whose cause is an object that is not what was encrypted.
fn damaged(what: &str, error: &(dyn Error + 'static)) -> StoreError {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    StoreError::Damaged(format!("could not {what}: {cause}"))
}

/// An error that ends all writing.
pub(crate) fn failed(why: &str) -> StoreError {
    StoreError::Failed(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_sends_with_a_refusal_is_not_repeated() {
        let source =
            "403 Forbidden: <?xml version=\"1.0\"?>\n<Error><AWSAccessKeyId>KEY</AWSAccessKeyId></Error>"
                .into();
        let refused = object_store::Error::Unauthenticated { path: "a/b".into(), source };
        let text = of_objects("read an object")(refused).to_string();
        assert!(!text.contains("KEY") && !text.contains('<'), "{text}");
    }
}
