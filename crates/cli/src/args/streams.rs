//! Help texts of the commands that compare, send and receive snapshots.

pub(super) const DIFF_EXAMPLES: &str = "\
A line for each name: created, removed, modified or attributes (mode, owner, times, extended attributes), the size, and the path from the
top. Contents that both trees share are not read. A file that was renamed is removed and created.

Examples:
  sluice diff ~/scratch/.snapshots/monday ~/scratch/.snapshots/tuesday
  sluice diff --json ~/scratch/.snapshots/monday";

pub(super) const SEND_EXAMPLES: &str = "\
With --since, the receiver must have the older snapshot, as it is here. With --resume, give SNAPSHOT and --since as before.

Examples:
  sluice send ~/scratch/.snapshots/monday | ssh two sluice receive backup
  sluice send --since monday ~/scratch/.snapshots/tuesday | sluice receive s3://BUCKET/backup";

pub(super) const RECEIVE_EXAMPLES: &str = "\
The snapshot gets the name that was sent. It is there when the whole stream has come, and durable when the command returns. If a stream is
cut off or damaged, the part before stays until another comes; the error has the token for `sluice send --resume` (again: `receive STORE < /dev/null`).

Examples:
  sluice mkfs ~/backup; sluice receive ~/backup < monday.stream
  sluice mount ~/backup ~/b; ls ~/b/.snapshots/monday";

pub(super) const EXPORT_EXAMPLES: &str = "Example:
  sluice export ~/scratch/.snapshots/monday | zstd > monday.tar.zst";
