//! Refused: requests that a server refuses because they are about a workspace, and that the relay carries out by requests of its own.
//!
//! A server knows its own file system alone: there a junction is a device file, and a directory that
//! [makes workspaces](workspace::WANTED) cannot have another directory.

use super::Shared;
use sluice_fuse::internal::abi::{EntryOut, InHeader, OutHeader};
use sluice_fuse::internal::{Reply, workspace};
use sluice_fuse::opcode;
use sluice_sync::Weak;
use sluice_sync::thread::Builder;
use sluice_vfs::Errno;
use zerocopy::FromBytes;

impl Shared {
    /// The server has refused `request`. True if another thread answers it, since it is about a workspace.
    pub(super) fn answers_for_workspace(&self, request: &[u8], out: &OutHeader) -> bool {
        let Ok((header, _)) = InHeader::read_from_prefix(request) else { return false };
        let carry_out = match (header.opcode, Errno::from_raw(-out.error)) {
            (opcode::RMDIR, Errno::ENOTDIR) => Shared::remove_workspace,
            (opcode::MKDIR, workspace::WANTED) => Shared::make_workspace,
            _ => return false,
        };
        if self.workspaces.root().is_none() {
            return false;
        }
        let Some(this) = self.own.get().and_then(Weak::upgrade) else { return false };
        let request = request.to_vec();
        let answer = move || {
            let mut reply = Reply::new();
            let answer = match carry_out(&this, &header, &request[size_of::<InHeader>()..]) {
                Ok(body) => {
                    reply.put_bytes(&body);
                    reply.success(header.unique)
                }
                Err(errno) => reply.failure(header.unique, errno),
            };
            // The answer to MKDIR has the entry of the junction, as one to LOOKUP.
            let code = if header.opcode == opcode::MKDIR { opcode::LOOKUP } else { header.opcode };
            this.tell(code, answer);
        };
        Builder::new().name("sluice-junction".into()).spawn(answer).is_ok()
    }

    /// The entry of `name` in directory `dir`, and the answer that has it. The kernel has looked it up then.
    pub(super) fn look_up(
        &self,
        header: &InHeader,
        dir: u64,
        name: &[u8],
    ) -> Result<(EntryOut, Vec<u8>), Errno> {
        let mut found = self.ask(header, opcode::LOOKUP, dir, name)?;
        let (entry, _) = EntryOut::read_from_prefix(&found).map_err(|_| Errno::EIO)?;
        if entry.nodeid == 0 {
            return Err(Errno::ENOENT);
        }
        found.truncate(size_of::<EntryOut>());
        Ok((entry, found))
    }
}
