//! Why: why a store takes no more changes, to be said at each call.

use crate::StoreError;

/// Why nothing more can be written.
#[derive(Clone)]
pub(crate) enum Why {
    /// A later owner has opened the store.
    Superseded,
    /// Something else, in words.
    Other(String),
}

impl Why {
    /// Since `error` came.
    pub(crate) fn of(error: &StoreError) -> Why {
        match error {
            StoreError::Superseded => Why::Superseded,
            other => Why::Other(other.to_string()),
        }
    }

    /// The error for a caller.
    pub(crate) fn error(&self) -> StoreError {
        match self {
            Why::Superseded => StoreError::Superseded,
            Why::Other(text) => StoreError::Failed(text.clone()),
        }
    }

    /// For a person.
    pub(crate) fn text(&self) -> String {
        match self {
            Why::Superseded => StoreError::Superseded.to_string(),
            Why::Other(text) => text.clone(),
        }
    }
}
