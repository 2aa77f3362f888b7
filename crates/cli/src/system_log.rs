//! System log: what a serving process has to say, through the facade of the crate `log`.
//!
//! In the foreground that goes to standard error. A daemon has none, and sends it to the socket that syslog daemons and journald
//! read; they add the time, and keep and rotate what they get.

use env_logger::{Builder, Target};
use log::{Level, LevelFilter};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// Where the system's log listens.
const SYSTEM_LOG: &str = "/dev/log";
/// Programs that serve in the background are this kind of source to syslog.
const FACILITY_DAEMON: u8 = 3 << 3;

/// From here on messages of `level` and above are kept: by the system's log for a `daemon`, else on standard error.
pub(crate) fn begin(level: LevelFilter, daemon: bool) -> io::Result<()> {
    let mut builder = Builder::new();
    builder.filter_level(level);
    // The object-store library's message about a refused request may contain the caller's key.
    builder.filter_module("slatedb", log::LevelFilter::Off);
    if daemon {
        builder.target(Target::Pipe(Box::new(SystemLog::at(SYSTEM_LOG.as_ref())?)));
        let pid = std::process::id();
        builder.format(move |out, record| {
            writeln!(out, "<{}>sluice[{pid}]: {}", priority(record.level()), record.args())
        });
        std::panic::set_hook(Box::new(|panic| log::error!("{panic}")));
    } else {
        builder.format(|out, record| writeln!(out, "sluice: {}", record.args()));
    }
    builder.init();
    Ok(())
}

fn priority(level: Level) -> u8 {
    FACILITY_DAEMON
        | match level {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug | Level::Trace => 7,
        }
}

/// Sends each message as a datagram. Without a system's log there is nobody to hear it.
struct SystemLog {
    socket: UnixDatagram,
    place: PathBuf,
}

impl SystemLog {
    fn at(place: &Path) -> io::Result<SystemLog> {
        let socket = UnixDatagram::unbound()?;
        // A log that is behind must not stop the file system.
        socket.set_nonblocking(true)?;
        Ok(SystemLog { socket, place: place.to_owned() })
    }
}

impl Write for SystemLog {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let _ = self.socket.send_to(message.trim_ascii_end(), &self.place);
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_a_datagram_and_a_log_that_is_not_there_no_error() {
        let place = std::env::temp_dir().join(format!("sluice-log-{}", std::process::id()));
        let listener = UnixDatagram::bind(&place).unwrap();
        let mut log = SystemLog::at(&place).unwrap();
        log.write_all(b"<27>sluice[1]: lost\n").unwrap();
        let mut heard = [0; 64];
        let len = listener.recv(&mut heard).unwrap();
        assert_eq!(&heard[..len], b"<27>sluice[1]: lost");
        drop(listener);
        std::fs::remove_file(&place).unwrap();
        log.write_all(b"nobody hears this").unwrap();
        assert_eq!((priority(Level::Error), priority(Level::Warn)), (27, 28));
    }
}
