//! Extended attributes, POSIX ACLs among them.

use super::caller;
use crate::CheckMode;
use crate::abi::flags::SETXATTR_ACL_KILL_SGID;
use crate::abi::{self, InHeader};
use crate::connection::Connection;
use crate::event::Event;
use crate::reply::Reply;
use sluice_vfs::{Errno, SetAttr, XattrFlags};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const CAPABILITY: &[u8] = b"security.capability";
const SET_GROUP_ID: u32 = 0o2000;

impl Connection {
    pub(super) fn setxattr(
        &self,
        header: &InHeader,
        arg: &abi::SetxattrIn,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), Errno> {
        let inode = self.node(header.nodeid)?;
        let cred = self.cred(header);
        inode.set_xattr(&cred, name, value, XattrFlags::from_bits_retain(arg.flags))?;
        if name == ACCESS_ACL && arg.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
            let permissions = inode.stat().permissions();
            if permissions & SET_GROUP_ID != 0 {
                let mode = Some(permissions & !SET_GROUP_ID);
                inode.set_attr(&cred, &SetAttr { mode, ..SetAttr::default() })?;
            }
        }
        if name == ACCESS_ACL && self.options.checks == CheckMode::Sluice {
            // The kernel ignores ACLs then, and so does not know that the mode has changed.
            self.tell_later(Event::Attributes { ino: inode.ino() });
        }
        Ok(())
    }

    pub(super) fn getxattr(
        &self,
        header: &InHeader,
        size: u32,
        name: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let value = self.node(header.nodeid)?.get_xattr(&self.cred(header), name)?;
        if size == 0 && name == CAPABILITY {
            self.nodes.note_look(header.nodeid, header.pid);
        }
        answer(size, &value, reply)
    }

    pub(super) fn listxattr(&self, header: &InHeader, size: u32, reply: &mut Reply) -> Result<(), Errno> {
        let mut names = self.node(header.nodeid)?.list_xattr(&self.cred(header));
        // `trusted.` names are shown to the privileged only. The kernel checks reading them, not listing them.
        let is_trusted = |name: &Vec<u8>| name.starts_with(b"trusted.");
        if names.iter().any(is_trusted) && !caller::is_superuser(header) {
            names.retain(|name| !is_trusted(name));
        }
        let mut list = Vec::new();
        for name in names {
            list.extend_from_slice(&name);
            list.push(0);
        }
        answer(size, &list, reply)
    }

    pub(super) fn removexattr(&self, header: &InHeader, name: &[u8]) -> Result<(), Errno> {
        self.node(header.nodeid)?.remove_xattr(&self.cred(header), name)
    }
}

/// Answers with `value`, or with its length when the caller has room for 0 bytes.
fn answer(size: u32, value: &[u8], reply: &mut Reply) -> Result<(), Errno> {
    if size == 0 {
        // Values and lists are limited far below 4 GiB.
        reply.put(&abi::GetxattrOut { size: value.len() as u32, padding: 0 });
    } else if value.len() > size as usize {
        return Err(Errno::ERANGE);
    } else {
        reply.put_bytes(value);
    }
    Ok(())
}
