//! Grpc: calls that come over the socket, and the functions that answer them.
//!
//! A call may wait for the disk, so it runs on a thread that may.

use super::Plugin;
use prost::Message;
use sluice_sync::Arc;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// All services of the plugin, for one connection.
#[derive(Clone)]
pub(super) struct CsiServices(pub(super) Arc<Plugin>);

impl Service<http::Request<Body>> for CsiServices {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let plugin = self.0.clone();
        Box::pin(async move { Ok(route(plugin, request).await) })
    }
}

async fn route(plugin: Arc<Plugin>, request: http::Request<Body>) -> http::Response<Body> {
    let path = request.uri().path().to_owned();
    let name = path.strip_prefix("/csi.v1.").unwrap_or_default();
    match name {
        "Identity/GetPluginInfo" => answer(plugin, request, Plugin::plugin_info).await,
        "Identity/GetPluginCapabilities" => answer(plugin, request, Plugin::plugin_capabilities).await,
        "Identity/Probe" => answer(plugin, request, Plugin::probe).await,
        "Controller/ControllerGetCapabilities" => {
            answer(plugin, request, Plugin::controller_capabilities).await
        }
        "Controller/CreateVolume" => answer(plugin, request, Plugin::create_volume).await,
        "Controller/DeleteVolume" => answer(plugin, request, Plugin::delete_volume).await,
        "Controller/ValidateVolumeCapabilities" => {
            answer(plugin, request, Plugin::validate_volume_capabilities).await
        }
        "Controller/ListVolumes" => answer(plugin, request, Plugin::list_volumes).await,
        "Controller/GetCapacity" => answer(plugin, request, Plugin::get_capacity).await,
        "Controller/CreateSnapshot" => answer(plugin, request, Plugin::create_snapshot).await,
        "Controller/DeleteSnapshot" => answer(plugin, request, Plugin::delete_snapshot).await,
        "Controller/ListSnapshots" => answer(plugin, request, Plugin::list_snapshots).await,
        "Controller/ControllerExpandVolume" => {
            answer(plugin, request, Plugin::controller_expand_volume).await
        }
        "Node/NodeStageVolume" => answer(plugin, request, Plugin::stage).await,
        "Node/NodeUnstageVolume" => answer(plugin, request, Plugin::unstage).await,
        "Node/NodePublishVolume" => answer(plugin, request, Plugin::publish).await,
        "Node/NodeUnpublishVolume" => answer(plugin, request, Plugin::unpublish).await,
        "Node/NodeGetVolumeStats" => answer(plugin, request, Plugin::volume_stats).await,
        "Node/NodeExpandVolume" => answer(plugin, request, Plugin::node_expand_volume).await,
        "Node/NodeGetCapabilities" => answer(plugin, request, Plugin::node_capabilities).await,
        "Node/NodeGetInfo" => answer(plugin, request, Plugin::node_info).await,
        _ => Status::unimplemented(format!("{path}: no call of this driver, as its capabilities say"))
            .into_http(),
    }
}

/// Answers one call, by `call`.
async fn answer<Q, A>(
    plugin: Arc<Plugin>,
    request: http::Request<Body>,
    call: fn(&Plugin, Q) -> Result<A, Status>,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    let name = request.uri().path().trim_start_matches("/csi.v1.").to_owned();
    let codec: ProstCodec<A, Q> = ProstCodec::default();
    Grpc::new(codec).unary(PluginCall { plugin, name, call }, request).await
}

/// A call of a function of the plugin.
struct PluginCall<Q, A> {
    plugin: Arc<Plugin>,
    name: String,
    call: fn(&Plugin, Q) -> Result<A, Status>,
}

impl<Q: Send + 'static, A: Send + 'static> Service<Request<Q>> for PluginCall<Q, A> {
    type Response = Response<A>;
    type Error = Status;
    type Future = BoxFuture<Response<A>, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (plugin, name, call) = (self.plugin.clone(), self.name.clone(), self.call);
        Box::pin(async move {
            let called = tokio::task::spawn_blocking(move || call(&plugin, request.into_inner())).await;
            let answered = called.unwrap_or_else(|panic| Err(Status::internal(panic.to_string())));
            if let Err(status) = &answered {
                log::warn!("{name}: {:?}: {}", status.code(), status.message());
            }
            answered.map(Response::new)
        })
    }
}
