//! Heed: a server's side of its holder: what it is told to do, and what it looks at before it takes a mount over.

use crate::bucket;
use crate::failures::{failure, mount_failure};
use crate::holder_link::{HolderLink, HolderMessage, PROTOCOL};
use crate::key_source::refuse_wrong_key;
use crate::named_store::NamedStore;
use sluice_console::failure::{Failure, Result};
use sluice_fuse::{HeldMount, HeldServer, MountOptions, control};
use sluice_store::disk::HostDisk;
use sluice_store::{Store, StoreError, StoreKey};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, thread};
use std::io;

/// Whether this program can take over the mount of a holder that speaks `protocol`.
///
/// # Errors
/// It cannot, and why: the protocol, the state of the mount, or the store's format or key.
pub(crate) fn refuse_other(
    held: &HeldMount,
    protocol: &str,
    options: &MountOptions,
    (store, key): (NamedStore<'_>, Option<&StoreKey>),
) -> Result<()> {
    if protocol != PROTOCOL {
        let text = format!(
            "the holder of the mount speaks `{protocol}`, and the new program `{PROTOCOL}`: unmount, and mount with the new program"
        );
        return Err(Failure::Failed(text));
    }
    held.check(options).map_err(mount_failure)?;
    let NamedStore { address, name } = store;
    let known = match bucket::at(address).map_err(failure(name))? {
        Some(bucket) => bucket::info(&bucket).map(drop),
        None => HostDisk::unlocked(address).and_then(|disk| Store::info(&disk)).map(drop),
    };
    known.map_err(failure(name))?;
    refuse_wrong_key(store, key)
}

/// How long a server that was told to leave is waited for, by the next one, when their holder has ended.
const LEAVING: Duration = Duration::from_secs(5);
/// How often the next one looks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Does `open`, again and again while the last server has the store, which may be about to leave it.
pub(crate) fn once_free<T>(
    open: impl Fn() -> std::result::Result<T, StoreError>,
) -> std::result::Result<T, StoreError> {
    let end = Instant::now() + LEAVING;
    loop {
        match open() {
            Err(StoreError::InUse(_)) if Instant::now() < end => thread::sleep(LOOK_AGAIN),
            decided => return decided,
        }
    }
}

/// Does what the holder says, on a thread of its own, as long as the mount lasts.
///
/// # Errors
/// No thread can be started.
pub(crate) fn heed(link: &Arc<HolderLink>, server: HeldServer) -> io::Result<()> {
    let to_holder = link.clone();
    server.pass_upgrades_on(move |program, client| to_holder.say(&HolderMessage::Upgrade(program, client)));
    let link = link.clone();
    let heeds = move || {
        while let Ok(Some(word)) = link.hear() {
            let heeded = match word {
                HolderMessage::Look => {
                    let (answered, serving) = server.counts();
                    link.say(&HolderMessage::Answered(answered, serving))
                }
                // These take their time, in which the holder may look.
                HolderMessage::Push | HolderMessage::Leave => {
                    let (link, server) = (link.clone(), server.clone());
                    let obeys = move || obey(&word, &link, &server);
                    thread::Builder::new().name("sluice-leave".into()).spawn(obeys).map(drop)
                }
                _ => Ok(()),
            };
            if heeded.is_err() {
                break;
            }
        }
    };
    thread::Builder::new().name("sluice-holder".into()).spawn(heeds).map(drop)
}

/// Pushes, or leaves if that is possible.
fn obey(word: &HolderMessage, link: &HolderLink, server: &HeldServer) {
    let answer = match word {
        HolderMessage::Leave => match server.leave() {
            Ok(()) => leave(link),
            Err(why) => HolderMessage::Stays(why),
        },
        _ => {
            server.push();
            HolderMessage::Pushed
        }
    };
    // Without a holder nobody waits for it.
    let _ = link.say(&answer);
}

/// Ends this process, which has brought everything to the store and serves no more.
fn leave(link: &HolderLink) -> ! {
    // A process that unmounts meanwhile waits for what is durable.
    control::tell_end(None);
    // Without a holder the next server finds out by itself.
    let _ = link.say(&HolderMessage::Left);
    std::process::exit(0)
}
