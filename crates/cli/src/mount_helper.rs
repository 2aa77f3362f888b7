//! Mount helper: this program under the name `mount.fuse.sluice`, as which mount(8) runs it for `mount -t fuse.sluice` and
//! for lines of `/etc/fstab`.
//!
//! # Theory
//! mount(8) looks for a program of that name in `/sbin`, and hands over what it was asked for:
//! ```text
//!   mount.fuse.sluice SOURCE DIR [-sfnv] [-o OPTION,...] [-t TYPE]
//! ```
//! A SOURCE that is an absolute path or a URL is a store. A word without a slash is what the table of mounts shows, as with
//! tmpfs, and the file system is in memory. Exit status 0: mounted; 1: bad usage; 32: failed, as mount(8) has it.

use crate::bucket::{self, Bucket};
use crate::serve;
use sluice_console::failure::{Failure, Result};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

const NAME: &str = "mount.fuse.sluice";
/// Options for mount(8) and for readers of `/etc/fstab`, in addition to options that begin with `x-`.
const FOR_OTHERS: [&str; 18] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "comment",
    "uhelper",
    "nolazytime",
    "silent",
    "loud",
    "iversion",
    "noiversion",
    "nomand",
];

/// The arguments of mount(8).
#[derive(Debug, PartialEq, Eq)]
struct Order {
    source: OsString,
    dir: PathBuf,
    /// The options for sluicefs.
    options: Vec<String>,
    /// Do everything but mount.
    fake: bool,
}

/// Whether this program was started under the name of the helper.
pub(crate) fn is_meant(program: Option<&OsStr>) -> bool {
    program.is_some_and(|program| Path::new(program).file_name() == Some(OsStr::new(NAME)))
}

/// Mounts, or remounts, as `arguments` say, and gives the exit status.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> u8 {
    let (text, status) = match Order::parse(arguments).and_then(Order::carry_out) {
        Ok(()) => return 0,
        Err(Failure::Usage(text)) => (text, 1),
        Err(failure) => (failure.to_string(), 32),
    };
    eprintln!("{NAME}: {}", sluice_console::program::printable(&text));
    status
}

impl Order {
    fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Order> {
        let usage = || Failure::Usage("give SOURCE DIR [-o OPTION,...]; mount(8) calls this program".into());
        let (mut places, mut options, mut fake) = (Vec::new(), Vec::new(), false);
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let letters =
                argument.to_str().and_then(|text| text.strip_prefix('-')).filter(|text| !text.is_empty());
            match letters {
                None => places.push(argument),
                Some("o") => {
                    let list = arguments.next().and_then(|list| list.into_string().ok()).ok_or_else(usage)?;
                    options
                        .extend(list.split(',').filter(|option| !is_for_others(option)).map(str::to_owned));
                }
                // The type is known by our name.
                Some("t") => drop(arguments.next()),
                Some(letters) if letters.chars().all(|letter| "sfnv".contains(letter)) => {
                    fake |= letters.contains('f');
                }
                Some(_) => return Err(usage()),
            }
        }
        let [source, dir] = <[OsString; 2]>::try_from(places).map_err(|_| usage())?;
        Ok(Order { source, dir: dir.into(), options, fake })
    }

    fn carry_out(mut self) -> Result<()> {
        if self.fake {
            return Ok(());
        }
        if let Some(store) = self.store() {
            return serve::mount_in_background(Some(store), &self.dir, &self.options, None);
        }
        bucket::refuse_misspelt(Path::new(&self.source))?;
        if self.source.as_encoded_bytes().contains(&b'/') {
            let source = Path::new(&self.source).display();
            return Err(Failure::Usage(format!("{source}: give the store's path from the root on")));
        }
        let names_source = self.options.iter().any(|option| option.starts_with("fsname="));
        let source = self.source.to_str().filter(|source| !names_source && !source.contains(','));
        if let Some(source) = source.filter(|source| !source.is_empty()) {
            self.options.insert(0, format!("fsname={source}"));
        }
        serve::mount_in_background(None, &self.dir, &self.options, None)
    }

    /// The store to mount, if the source is a store.
    fn store(&self) -> Option<&Path> {
        let source = Path::new(&self.source);
        (source.is_absolute() || Bucket::is_url(source)).then_some(source)
    }
}

fn is_for_others(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or(option);
    name.is_empty() || name.starts_with("x-") || name.starts_with("X-") || FOR_OTHERS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Order> {
        Order::parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn what_mount_hands_over_is_understood() {
        let order =
            parse("scratch /mnt -n -o rw,size=1G,x-systemd.automount,_netdev,user=me -t fuse.sluice -sv")
                .unwrap();
        let options = vec!["rw".to_owned(), "size=1G".to_owned()];
        assert_eq!(order, Order { source: "scratch".into(), dir: "/mnt".into(), options, fake: false });
        assert!(parse("none /mnt -fn").unwrap().fake);
        for (source, is_store) in
            [("/srv/store", true), ("s3://bucket/path", true), ("scratch", false), ("a/b", false)]
        {
            assert_eq!(parse(&format!("{source} /mnt")).unwrap().store().is_some(), is_store, "{source}");
        }
        for bad in ["/mnt", "a b c", "a b -o", "a b -q"] {
            assert!(matches!(parse(bad), Err(Failure::Usage(_))), "{bad}");
        }
        assert!(
            is_meant(Some(OsStr::new("/sbin/mount.fuse.sluice"))) && !is_meant(Some(OsStr::new("sluice")))
        );
    }
}
