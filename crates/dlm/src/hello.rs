//! Hello: the first frame of each side of a connection: which cluster, which nodes.

use crate::NodeId;
use crate::tls::Secure;
use std::io;

/// The protocol and its version.
const MAGIC: &[u8; 8] = b"slucdlm1";
/// The longest name of a cluster.
pub(crate) const CLUSTER_MAX: usize = 64;

/// What a node says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) cluster: String,
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
}

impl Hello {
    pub(crate) fn say(&self, connection: &Secure) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.from.0.to_le_bytes());
        bytes.extend(self.to.0.to_le_bytes());
        let mut name = [0; CLUSTER_MAX];
        let cluster = self.cluster.as_bytes();
        name.get_mut(..cluster.len()).ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(cluster);
        bytes.extend(name);
        connection.write_all(&bytes)
    }

    pub(crate) fn hear(connection: &Secure) -> io::Result<Hello> {
        let mut bytes = [0; 8 + 8 + 8 + CLUSTER_MAX];
        connection.read_exact(&mut bytes)?;
        let (magic, rest) = bytes.split_at(8);
        if magic != MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let number = |at: usize| {
            let bytes = rest[at..at + 8].try_into().expect("eight bytes");
            NodeId(u64::from_le_bytes(bytes))
        };
        let name = &rest[16..];
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let cluster = str::from_utf8(&name[..length]).map_err(io::Error::other)?.to_string();
        Ok(Hello { cluster, from: number(0), to: number(8) })
    }
}
