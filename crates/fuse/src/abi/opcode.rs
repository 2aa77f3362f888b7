//! Opcodes: what a request asks for, by the kernel's names (without their prefix) and numbers.

macro_rules! opcodes {
    ($($name:ident = $number:literal;)*) => {
        /// Every opcode that this crate knows, with its name.
        pub(crate) const ALL: &[(u32, &str)] = &[$(($number, stringify!($name)),)*];
        $(#[doc = concat!("`FUSE_", stringify!($name), "`.")] pub const $name: u32 = $number;)*
    };
}

opcodes! {
    LOOKUP = 1;
    FORGET = 2;
    GETATTR = 3;
    SETATTR = 4;
    READLINK = 5;
    SYMLINK = 6;
    MKNOD = 8;
    MKDIR = 9;
    UNLINK = 10;
    RMDIR = 11;
    RENAME = 12;
    LINK = 13;
    OPEN = 14;
    READ = 15;
    WRITE = 16;
    STATFS = 17;
    RELEASE = 18;
    FSYNC = 20;
    SETXATTR = 21;
    GETXATTR = 22;
    LISTXATTR = 23;
    REMOVEXATTR = 24;
    FLUSH = 25;
    INIT = 26;
    OPENDIR = 27;
    READDIR = 28;
    RELEASEDIR = 29;
    FSYNCDIR = 30;
    GETLK = 31;
    SETLK = 32;
    SETLKW = 33;
    ACCESS = 34;
    CREATE = 35;
    INTERRUPT = 36;
    BMAP = 37;
    DESTROY = 38;
    IOCTL = 39;
    POLL = 40;
    NOTIFY_REPLY = 41;
    BATCH_FORGET = 42;
    FALLOCATE = 43;
    READDIRPLUS = 44;
    RENAME2 = 45;
    LSEEK = 46;
    COPY_FILE_RANGE = 47;
    SETUPMAPPING = 48;
    REMOVEMAPPING = 49;
    SYNCFS = 50;
    TMPFILE = 51;
    STATX = 52;
    COPY_FILE_RANGE_64 = 53;
}

/// The largest known opcode, plus 1.
pub(crate) const COUNT: usize = 54;

/// The name of `opcode`, or `"UNKNOWN"`.
pub fn name(opcode: u32) -> &'static str {
    ALL.iter().find(|(number, _)| *number == opcode).map_or("UNKNOWN", |(_, name)| name)
}

/// The opcode called `name`, as in the kernel's header without its prefix (`"LOOKUP"`).
pub fn by_name(name: &str) -> Option<u32> {
    ALL.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_has_one_name_and_fits_the_counters() {
        for (number, name) in ALL {
            assert_eq!(by_name(name), Some(*number));
            assert_eq!(super::name(*number), *name);
            assert!((*number as usize) < COUNT);
        }
        assert_eq!(name(7), "UNKNOWN");
        assert_eq!(by_name("MOUNT"), None);
    }
}
