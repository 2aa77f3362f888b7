//! Why: why a store takes no more changes, to be said at each call.

use crate::StoreError;

/// Why nothing more can be written.
#[derive(Clone)]
pub(crate) enum Why {
    /// Another node has opened the store.
    Fenced,
    /// Something else, in words.
    Other(String),
}

impl Why {
    /// Since `error` came.
    pub(crate) fn of(error: &StoreError) -> Why {
        match error {
            StoreError::Fenced => Why::Fenced,
            other => Why::Other(other.to_string()),
        }
    }

    /// The error for a caller.
    pub(crate) fn error(&self) -> StoreError {
        match self {
            Why::Fenced => StoreError::Fenced,
            Why::Other(text) => StoreError::Failed(text.clone()),
        }
    }

    /// For a person.
    pub(crate) fn text(&self) -> String {
        match self {
            Why::Fenced => StoreError::Fenced.to_string(),
            Why::Other(text) => text.clone(),
        }
    }
}
