//! No CSI: stands for `csi.rs` in a build without the services of the Container Storage Interface, and refuses them.

use crate::args::CsiArgs;
use sluice_console::failure::{Failure, Result};

pub(crate) fn csi(_: &CsiArgs) -> Result<()> {
    let text =
        "this build of sluice has no CSI services; `make build` in the source of sluicefs makes one that has";
    Err(Failure::Unsupported(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_services_are_refused_with_the_cure() {
        let refused = csi(&CsiArgs::default()).expect_err("it has none").to_string();
        assert!(refused.contains("no CSI services") && refused.contains("make build"), "{refused}");
    }
}
