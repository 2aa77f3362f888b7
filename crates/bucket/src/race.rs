//! Race: does an object store make an object *if there is none*, also when several ask for it at once?
//!
//! All fencing rests on that, and some servers say yes to each. So a store is made only after this many races with
//! exactly one winner each, whose bytes are read afterwards.

use crate::error::of_objects;
use crate::objects::{self, Objects};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload};
use sluice_store::StoreError;
use std::io;
use tokio::task::JoinSet;

/// Races, and writers of each.
const RACES: usize = 20;
const WRITERS: usize = 16;

/// Races for objects below `prefix`, which are removed afterwards.
///
/// # Errors
/// [`StoreError::Io`] with `Unsupported` if several writers made one object; the object store's.
pub(crate) async fn accept(objects: &Objects, prefix: &str) -> Result<(), StoreError> {
    for race in 0..RACES {
        let path = Path::from(format!("{prefix}/{race}"));
        let raced = run(objects, &path).await;
        // An object that cannot be removed does no harm.
        let _ = objects.delete(&path).await;
        raced?;
    }
    Ok(())
}

async fn run(objects: &Objects, path: &Path) -> Result<(), StoreError> {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (objects, path) = (objects.clone(), path.clone());
        writers.spawn(async move {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let made = objects.put_opts(&path, PutPayload::from(bytes(writer)), options).await;
            match made {
                Ok(_) => Ok(Some(writer)),
                Err(object_store::Error::AlreadyExists { .. }) => Ok(None),
                Err(error) => Err(of_objects("race for an object")(error)),
            }
        });
    }
    let mut winners = Vec::new();
    while let Some(ended) = writers.join_next().await {
        let outcome = ended.map_err(|error| StoreError::Failed(error.to_string()))?;
        winners.extend(outcome?);
    }
    let found = objects::get(objects, path).await?;
    match winners[..] {
        [winner] if found == Some(bytes(winner)) => Ok(()),
        _ => Err(StoreError::Io("use this object store", unsafe_store(winners.len()))),
    }
}

/// A writer's content: long enough that a partial write would show.
fn bytes(writer: usize) -> Vec<u8> {
    vec![writer as u8; 4096]
}

fn unsafe_store(winners: usize) -> io::Error {
    let text = format!(
        "of {WRITERS} that made one object at once {winners} were told that they had made it, or another was read: without \
         conditional writes that hold under a race two nodes could write one store"
    );
    io::Error::new(io::ErrorKind::Unsupported, text)
}
