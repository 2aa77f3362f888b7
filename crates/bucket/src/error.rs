//! Errors: those of SlateDB and of an object store as errors of a store.

use slatedb::{CloseReason, ErrorKind};
use sluice_store::StoreError;
use std::io;

/// What an error of SlateDB is, that came while trying `what`.
pub(crate) fn of_records(what: &'static str) -> impl FnOnce(slatedb::Error) -> StoreError {
    move |error| match error.kind() {
        ErrorKind::Closed(CloseReason::Fenced) => StoreError::Fenced,
        ErrorKind::Unavailable => StoreError::Io(what, io::Error::other(error.to_string())),
        ErrorKind::Closed(_) | ErrorKind::Transaction => failed(&format!("could not {what}: {error}")),
        _ => StoreError::Damaged(format!("could not {what}: {error}")),
    }
}

/// What an error of an object store is, that came while trying `what`.
pub(crate) fn of_objects(what: &'static str) -> impl FnOnce(object_store::Error) -> StoreError {
    move |error| {
        let kind = match &error {
            object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
            object_store::Error::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                io::ErrorKind::PermissionDenied
            }
            _ => io::ErrorKind::Other,
        };
        StoreError::Io(what, io::Error::new(kind, error.to_string()))
    }
}

/// An error that ends all writing.
pub(crate) fn failed(why: &str) -> StoreError {
    StoreError::Failed(why.to_owned())
}
