//! Identity: what the plugin is, and whether it works.

use super::Plugin;
use super::errors::in_one_line;
use super::messages::{
    CapabilityType, EmptyMessage, GetPluginCapabilitiesResponse, GetPluginInfoResponse, PluginCapability,
    ProbeResponse,
};
use crate::in_time::in_time;
use sluice_console::failure::{Failure, Result as Told};
use std::path::Path;
use tonic::Status;

/// Services of a plugin: a controller; volumes that not all nodes reach.
const CONTROLLER: i32 = 1;
const CONSTRAINED: i32 = 2;
/// Volumes grow while they are in use.
const ONLINE: i32 = 1;

impl Plugin {
    pub(super) fn plugin_info(&self, _: EmptyMessage) -> Result<GetPluginInfoResponse, Status> {
        Ok(GetPluginInfoResponse {
            name: self.driver.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
        })
    }

    pub(super) fn plugin_capabilities(
        &self,
        _: EmptyMessage,
    ) -> Result<GetPluginCapabilitiesResponse, Status> {
        let of = |number| Some(CapabilityType { number });
        let service = |number| PluginCapability { service: of(number), volume_expansion: None };
        let constrained = self.topology().map(|_| service(CONSTRAINED));
        let expansion = PluginCapability { service: None, volume_expansion: of(ONLINE) };
        let capabilities = [service(CONTROLLER), expansion].into_iter().chain(constrained).collect();
        Ok(GetPluginCapabilitiesResponse { capabilities })
    }

    /// # Errors
    /// `FAILED_PRECONDITION`: the mount of the volumes does not answer.
    pub(super) fn probe(&self, _: EmptyMessage) -> Result<ProbeResponse, Status> {
        let place = self.place.clone();
        let reach = move |_: &Path| -> Told<()> {
            place.reached().map(drop).map_err(|status| Failure::Failed(status.message().to_owned()))
        };
        in_time(self.place.dir(), reach)
            .map(|()| ProbeResponse { ready: Some(true) })
            .map_err(|failure| Status::failed_precondition(in_one_line(&failure)))
    }
}
