//! The help of `sluice upgrade`.

pub(super) const UPGRADE_EXAMPLES: &str = "\
The new server looks first whether it can serve: options, the format of the store, its key, the protocol of the holder. Then the old one brings
everything to the store and ends; calls of programs wait meanwhile, and none fails. A new program that cannot start leaves the old one in place.
For mounts with a store and a holder, which those in the background have (see `sluice list`).

Exit status: 0 upgraded, 1 not upgraded (the mount goes on as before), 2 bad usage.

Examples:
  /opt/sluice-new/bin/sluice upgrade /srv/files
  sluice list --json | jq -r '.[] | select(.holder) | .directory' | xargs -n1 sluice upgrade";
