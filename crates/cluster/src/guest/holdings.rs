//! Holdings: what a kernel holds of a file system: node numbers, open files, locks. As bytes for another process.

use sluice_fuse::internal::abi::LkIn;
use std::collections::BTreeSet;
use std::io;

/// The most entries of each kind that are believed.
const ENTRIES_MAX: usize = 1 << 24;
/// The longest INIT.
const INIT_MAX: usize = 4096;
const LOCK: usize = size_of::<LkIn>();

/// A kernel's state, for the next server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// The kernel's INIT; empty if it has not been answered.
    pub(crate) init: Vec<u8>,
    /// Node number, generation, lookups.
    pub(crate) nodes: Vec<(u64, u64, u64)>,
    /// Handle and node.
    pub(crate) handles: Vec<(u64, u64)>,
    /// The node, and the request for the lock.
    pub(crate) locks: Vec<(u64, [u8; LOCK])>,
    /// Requests that the kernel has answers to, and that may not have been executed, in their order.
    pub(crate) behind: Vec<Vec<u8>>,
}

impl Holdings {
    /// The numbers of the inodes.
    pub fn inodes(&self) -> impl Iterator<Item = u64> {
        self.nodes.iter().map(|(nodeid, ..)| *nodeid)
    }

    /// Inodes among them with open files.
    pub(crate) fn open_inodes(&self) -> BTreeSet<u64> {
        let of_locks = self.locks.iter().map(|(nodeid, _)| *nodeid);
        self.handles.iter().map(|(_, nodeid)| *nodeid).chain(of_locks).collect()
    }

    /// As bytes, which [`decode`](Self::decode) reads.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let number = |out: &mut Vec<u8>, number: u64| out.extend(number.to_le_bytes());
        number(&mut out, self.init.len() as u64);
        out.extend(&self.init);
        number(&mut out, self.nodes.len() as u64);
        for &(nodeid, generation, lookups) in &self.nodes {
            [nodeid, generation, lookups].into_iter().for_each(|field| number(&mut out, field));
        }
        number(&mut out, self.handles.len() as u64);
        for &(fh, nodeid) in &self.handles {
            [fh, nodeid].into_iter().for_each(|field| number(&mut out, field));
        }
        number(&mut out, self.locks.len() as u64);
        for (nodeid, lock) in &self.locks {
            number(&mut out, *nodeid);
            out.extend(lock);
        }
        number(&mut out, self.behind.len() as u64);
        for request in &self.behind {
            number(&mut out, request.len() as u64);
            out.extend(request);
        }
        out
    }

    /// Reads them.
    ///
    /// # Errors
    /// `InvalidData` if `bytes` are nothing of the kind.
    pub fn decode(bytes: &[u8]) -> io::Result<Holdings> {
        let mut rest = Rest(bytes);
        let init_len = rest.count(1)?;
        if init_len > INIT_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let init = rest.bytes(init_len)?.to_vec();
        let nodes = (0..rest.count(24)?).map(|_| Ok((rest.number()?, rest.number()?, rest.number()?)));
        let nodes = nodes.collect::<io::Result<_>>()?;
        let handles = (0..rest.count(16)?).map(|_| Ok((rest.number()?, rest.number()?)));
        let handles = handles.collect::<io::Result<_>>()?;
        let locks = (0..rest.count(8 + LOCK)?).map(|_| {
            let nodeid = rest.number()?;
            let lock = rest.bytes(LOCK)?.try_into().map_err(io::Error::other)?;
            Ok((nodeid, lock))
        });
        let locks = locks.collect::<io::Result<_>>()?;
        let behind = (0..rest.count(8)?).map(|_| {
            let len = rest.count(1)?;
            Ok(rest.bytes(len)?.to_vec())
        });
        let behind = behind.collect::<io::Result<_>>()?;
        if !rest.0.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Holdings { init, nodes, handles, locks, behind })
    }
}

/// The unread rest.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, len: usize) -> io::Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(io::ErrorKind::InvalidData)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn number(&mut self) -> io::Result<u64> {
        let bytes = self.bytes(8)?.try_into().map_err(io::Error::other)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// How many entries of `size` bytes follow; no more than there are bytes for.
    fn count(&mut self, size: usize) -> io::Result<usize> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > ENTRIES_MAX || count > self.0.len() / size {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holdings_are_the_same_after_they_have_travelled_and_damaged_ones_are_refused() {
        let holdings = Holdings {
            init: vec![1, 2, 3],
            nodes: vec![(1, 0, 1), (u64::MAX, 7, 2)],
            handles: vec![(5, 1)],
            locks: vec![(1, [9; LOCK])],
            behind: vec![vec![7; 3], Vec::new()],
        };
        let bytes = holdings.encode();
        assert_eq!(Holdings::decode(&bytes).expect("whole"), holdings);
        for cut in 0..bytes.len() {
            assert!(Holdings::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(Holdings::decode(&[bytes.as_slice(), &[0]].concat()).is_err());
        assert!(Holdings::decode(&[0xff; 64]).is_err());
    }
}
