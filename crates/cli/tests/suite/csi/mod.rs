//! `sluice csi`, as an orchestrator uses it: calls over the socket, bind mounts, and a plugin that is killed.

#[allow(dead_code, reason = "the client uses its part")]
#[path = "../../../src/csi/messages.rs"]
mod messages;
mod plugin;

use crate::harness::{
    Mounted, SLUICE, Scratch, Served, crash, is_mounted, kill, processes_of, server_of, sluice, umount, until,
};
use messages::*;
use plugin::{MIB, Plugin, can_serve, capability, publication, refused, store, text, volume};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use tonic::{Code, Status};

#[test]
fn a_volume_lives_from_its_creation_to_its_deletion() {
    if !can_serve("a_volume_lives_from_its_creation_to_its_deletion") {
        return;
    }
    let scratch = Scratch::new();
    let (store, mount) = (store(&scratch), scratch.0.join("mount"));
    let (staging, pods) = (scratch.dir("staging"), scratch.dir("pods"));
    let plugin = Plugin::start(&scratch, &["--store", &text(&store), "--mount", &text(&mount)]);
    let socket = scratch.0.join("csi.sock").metadata().expect("it listens");
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    let made = plugin.create(volume("pvc-1", 4 * MIB)).expect("room");
    assert_eq!((made.volume_id.as_str(), made.capacity_bytes), ("pvc-1", 4 * MIB));
    assert_eq!(made.accessible_topology[0].segments["csi.sluicefs/node"], "here");
    assert_eq!(plugin.create(volume("pvc-1", 4 * MIB)).expect("a repetition"), made);
    let target = pods.join("target");
    for _ in 0..2 {
        plugin.stage("pvc-1", &staging).expect("it is there");
        plugin.publish(publication("pvc-1", &staging, &target)).expect("it is staged");
    }
    assert_eq!(target.metadata().expect("a mount").mode() & 0o777, 0o755);
    fs::write(target.join("kept"), vec![1; MIB as usize]).expect("room");
    let full = fs::write(target.join("much"), vec![2; 4 * MIB as usize]).expect_err("beyond the quota");
    assert_eq!(full.kind(), ErrorKind::QuotaExceeded);
    fs::remove_file(target.join("much")).expect("it is there");
    let asked =
        |path: &Path| NodeGetVolumeStatsRequest { volume_id: "pvc-1".into(), volume_path: text(path) };
    let stats: NodeGetVolumeStatsResponse =
        plugin.call("Node/NodeGetVolumeStats", asked(&target)).expect("it is there");
    assert_eq!((stats.usage[0].total, stats.usage[0].unit, stats.usage[1].unit), (4 * MIB, 1, 2));

    let taken = plugin.snapshot("snap-1", "pvc-1").expect("room");
    assert!(taken.ready_to_use && taken.size_bytes == 4 * MIB, "{taken:?}");
    fs::write(target.join("kept"), "changed").expect("room");
    assert_eq!(plugin.snapshot("snap-1", "pvc-1").expect("a repetition"), taken);
    let of = |snapshot, volume| {
        let source = |id: &str| Some(SourceId { id: id.into() });
        Some(VolumeContentSource {
            snapshot: Option::and_then(snapshot, source),
            volume: Option::and_then(volume, source),
        })
    };
    let restored =
        CreateVolumeRequest { volume_content_source: of(Some("snap-1"), None), ..volume("pvc-2", 8 * MIB) };
    let made = plugin.create(restored.clone()).expect("room");
    assert_eq!(made.content_source, restored.volume_content_source);
    let copied =
        CreateVolumeRequest { volume_content_source: of(None, Some("pvc-1")), ..volume("pvc-3", 4 * MIB) };
    plugin.create(copied).expect("room");
    for (name, kept) in [("pvc-2", MIB as u64), ("pvc-3", 7)] {
        let (staging, target) = (scratch.dir(&format!("staging-{name}")), pods.join(name));
        plugin.stage(name, &staging).expect("it is there");
        let request = publication(name, &staging, &target);
        plugin.publish(NodePublishVolumeRequest { readonly: true, ..request.clone() }).expect("it is staged");
        assert_eq!(fs::metadata(target.join("kept")).expect("one is in the copy").len(), kept);
        let changed = fs::write(target.join("kept"), "x").expect_err("read-only");
        assert_eq!(changed.kind(), ErrorKind::ReadOnlyFilesystem);
        refused(plugin.publish(request), Code::AlreadyExists, "unpublish it first");
        refused(plugin.delete(name), Code::FailedPrecondition, "unpublish and unstage it first");
        for _ in 0..2 {
            plugin.unpublish(name, &target).expect("it is there");
            plugin.unstage(name, &staging).expect("it is there");
        }
        assert!(!target.exists() && !is_mounted(&staging));
        plugin.delete(name).expect("nobody uses it");
    }

    let larger = ControllerExpandVolumeRequest {
        volume_id: "pvc-1".into(),
        capacity_range: Some(CapacityRange { required_bytes: 16 * MIB, limit_bytes: 0 }),
    };
    for _ in 0..2 {
        let grown: ControllerExpandVolumeResponse =
            plugin.call("Controller/ControllerExpandVolume", larger.clone()).expect("room");
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (16 * MIB, false));
    }
    fs::write(target.join("much"), vec![2; 8 * MIB as usize]).expect("the quota is larger");
    let asked = NodeExpandVolumeRequest {
        volume_id: "pvc-1".into(),
        volume_path: text(&target),
        capacity_range: larger.capacity_range,
    };
    let grown: NodeExpandVolumeResponse = plugin.call("Node/NodeExpandVolume", asked).expect("it is there");
    assert_eq!(grown.capacity_bytes, 16 * MIB);

    plugin.unpublish("pvc-1", &target).expect("it is there");
    plugin.unstage("pvc-1", &staging).expect("it is there");
    for _ in 0..2 {
        plugin.delete("pvc-1").expect("nobody uses it");
        let gone = DeleteSnapshotRequest { snapshot_id: "snap-1".into() };
        let _: EmptyMessage = plugin.call("Controller/DeleteSnapshot", gone).expect("nobody uses it");
    }
    for place in ["volumes", "snapshots", "records/volumes", "records/snapshots"] {
        assert_eq!(fs::read_dir(mount.join("csi").join(place)).expect("it is there").count(), 0, "{place}");
    }
    let mut plugin = plugin;
    kill("-TERM", plugin.process.id());
    assert!(plugin.process.wait().expect("it ends").success(), "a client is still there");
    assert!(!scratch.0.join("csi.sock").exists());
    assert!(is_mounted(&mount), "the store stays mounted");
    umount(&mount);
}

#[test]
fn a_killed_plugin_leaves_mounts_that_work_and_the_next_one_goes_on() {
    if !can_serve("a_killed_plugin_leaves_mounts_that_work_and_the_next_one_goes_on") {
        return;
    }
    let scratch = Scratch::new();
    let (store, mount) = (store(&scratch), scratch.0.join("mount"));
    let (staging, target) = (scratch.dir("staging"), scratch.0.join("target"));
    let arguments = ["--store".to_owned(), text(&store), "--mount".to_owned(), text(&mount)];
    let arguments = arguments.each_ref().map(String::as_str);
    let mut plugin = Plugin::start(&scratch, &arguments);
    plugin.create(volume("pvc-1", 4 * MIB)).expect("room");
    plugin.stage("pvc-1", &staging).expect("it is there");
    let request = publication("pvc-1", &staging, &target);
    plugin.publish(request.clone()).expect("it is staged");
    let synced = |name: &str| {
        fs::write(target.join(name), name).expect("room");
        File::open(target.join(name)).and_then(|file| file.sync_all()).expect("it is durable");
    };
    synced("before");
    plugin.kill();
    synced("between");
    let mut plugin = Plugin::start(&scratch, &arguments);
    plugin.publish(request.clone()).expect("a repetition");
    synced("after");
    // Everything dies: the plugin, the holder, the server.
    plugin.kill();
    crash(&mount);
    until("the mount is dead", || fs::read(target.join("before")).is_err());
    let plugin = Plugin::start(&scratch, &arguments);
    for name in ["before", "between", "after"] {
        assert_eq!(fs::read_to_string(target.join(name)).expect("the target is mounted again"), name);
    }
    plugin.publish(request.clone()).expect("a repetition");
    // The mount dies below a plugin that lives.
    crash(&mount);
    until("the plugin has mounted it again", || plugin.probe().is_ok());
    synced("late");
    // A server that hangs holds up no probe.
    let server = server_of(&mount).to_string();
    let signal = |name: &str| Command::new("kill").args([name, &server]).status().expect("kill runs");
    assert!(signal("-STOP").success());
    let probed = plugin.probe();
    assert!(signal("-CONT").success());
    refused(probed, Code::FailedPrecondition, "has not answered within 2 s");
    until("the server answers again", || plugin.probe().is_ok());
    plugin.unpublish("pvc-1", &target).expect("it is there");
    plugin.unstage("pvc-1", &staging).expect("it is there");
    plugin.delete("pvc-1").expect("nobody uses it");
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the table of mounts");
    let ours = table.lines().filter(|line| line.contains(&text(&scratch.0))).count();
    assert_eq!(ours, 1, "only the store is mounted: {table}");
    drop(plugin);
    umount(&mount);
}

#[test]
fn a_plugin_in_namespaces_of_its_own_makes_mounts_that_others_see_and_keep() {
    let test = "a_plugin_in_namespaces_of_its_own_makes_mounts_that_others_see_and_keep";
    let Some(mounted) = can_serve(test).then(|| Mounted::new(test, "size=64M")).flatten() else { return };
    let scratch = Scratch::new();
    // As a kubelet's directory: mounts below it are seen on both sides.
    for options in [&["--bind", &text(&scratch.0)][..], &["--make-shared"]] {
        let made = Command::new("mount").args(options).arg(&scratch.0).status().expect("mount runs");
        assert!(made.success(), "{options:?}");
    }
    let container = ["unshare", "--mount", "--net", "--propagation", "unchanged", SLUICE];
    let start = || Plugin::start_through(&container, &scratch, &["--store", &text(mounted.dir())]);
    let mut plugin = start();
    let (staging, target) = (scratch.dir("staging"), scratch.0.join("target"));
    plugin.create(volume("pvc-1", 4 * MIB)).expect("room");
    plugin.stage("pvc-1", &staging).expect("it is there");
    plugin.publish(publication("pvc-1", &staging, &target)).expect("it is staged");
    fs::write(target.join("file"), "from outside").expect("the mount is seen here");
    plugin.kill();
    assert_eq!(fs::read_to_string(target.join("file")).expect("nothing is dead"), "from outside");
    let plugin = start();
    plugin.unpublish("pvc-1", &target).expect("it is there");
    plugin.unstage("pvc-1", &staging).expect("it is there");
    assert!(!target.exists() && !is_mounted(&staging));
    plugin.delete("pvc-1").expect("nobody uses it");
}

#[test]
#[cfg(feature = "cluster")]
fn in_a_cluster_the_owner_makes_volumes_and_each_node_mounts_them() {
    if !can_serve("in_a_cluster_the_owner_makes_volumes_and_each_node_mounts_them") {
        return;
    }
    let scratch = Scratch::new();
    let (store, cluster) = (store(&scratch), scratch.0.join("cluster"));
    sluice(["cluster".as_ref(), "init".as_ref(), cluster.as_os_str()]).well();
    let place = format!("dir:{}", cluster.display());
    // The first node is the owner.
    let nodes = ["owner", "guest"].map(|name| {
        let dir = scratch.dir(name);
        sluice(["mount", &text(&store), &text(&dir), "--cluster", &place]).well();
        Served(dir)
    });
    let [owner, guest] = nodes.each_ref().map(|node| {
        let own = Scratch::new();
        (Plugin::start(&own, &["--store", &text(&node.0)]), own)
    });
    let shared = || vec![capability(VolumeAccess::MultiNodeMultiWriter)];
    let wanted = |name| CreateVolumeRequest { volume_capabilities: shared(), ..volume(name, MIB) };
    let made = owner.0.create(wanted("pvc-1")).expect("room");
    assert!(made.accessible_topology.is_empty(), "all nodes reach it");
    refused(guest.0.create(wanted("pvc-2")), Code::Internal, "give this order on the owner's mount");
    let targets = [&owner, &guest].map(|(plugin, own)| {
        let (staging, target) = (own.dir("staging"), own.0.join("target"));
        plugin.stage("pvc-1", &staging).expect("it is there");
        plugin.publish(publication("pvc-1", &staging, &target)).expect("it is staged");
        target
    });
    fs::write(targets[1].join("file"), "from a guest").expect("room");
    assert_eq!(fs::read_to_string(targets[0].join("file")).expect("one volume"), "from a guest");
    let much = fs::write(targets[1].join("much"), vec![1; 2 * MIB as usize]);
    assert_eq!(much.expect_err("the quota counts on each node").kind(), ErrorKind::QuotaExceeded);
    for ((plugin, own), target) in [&owner, &guest].into_iter().zip(&targets) {
        plugin.unpublish("pvc-1", target).expect("it is there");
        plugin.unstage("pvc-1", &own.0.join("staging")).expect("it is there");
    }
    owner.0.delete("pvc-1").expect("nobody uses it");
    drop([owner, guest]);
    // The owner lets go last.
    for node in nodes.iter().rev() {
        umount(&node.0);
        until("the node has left", || processes_of(&node.0).is_empty());
    }
}

#[test]
fn wrong_calls_are_refused_with_the_codes_of_the_interface() {
    let test = "wrong_calls_are_refused_with_the_codes_of_the_interface";
    let Some(mounted) = can_serve(test).then(|| Mounted::new(test, "size=64M")).flatten() else { return };
    let scratch = Scratch::new();
    let plugin = Plugin::start(&scratch, &["--store", &text(mounted.dir())]);
    let (staging, target) = (scratch.dir("staging"), scratch.0.join("target"));
    let wrong = |change: &dyn Fn(&mut CreateVolumeRequest), code, words: &str| {
        let mut request = volume("pvc-1", MIB);
        change(&mut request);
        refused(plugin.create(request), code, words);
    };
    wrong(&|it| it.name.clear(), Code::InvalidArgument, "the field name is missing");
    wrong(&|it| it.volume_capabilities.clear(), Code::InvalidArgument, "volume_capabilities is missing");
    wrong(
        &|it| it.volume_capabilities = vec![capability(VolumeAccess::MultiNodeMultiWriter)],
        Code::InvalidArgument,
        "an access mode of a single node",
    );
    wrong(
        &|it| drop(it.parameters.insert("type".into(), "ssd".into())),
        Code::InvalidArgument,
        "this driver has none, so leave it out",
    );
    wrong(
        &|it| {
            let elsewhere = [("csi.sluicefs/node".to_owned(), "there".to_owned())].into();
            let requisite = vec![NodeTopology { segments: elsewhere }];
            it.accessibility_requirements = Some(TopologyRequirement { requisite });
        },
        Code::ResourceExhausted,
        " alone: ask for that",
    );
    wrong(
        &|it| it.capacity_range = Some(CapacityRange { required_bytes: 1 << 40, limit_bytes: 0 }),
        Code::OutOfRange,
        "ask for no more than that",
    );
    let from = |snapshot: &str| VolumeContentSource {
        snapshot: Some(SourceId { id: snapshot.into() }),
        volume: None,
    };
    wrong(&|it| it.volume_content_source = Some(from("none")), Code::NotFound, "there is no snapshot");

    plugin.create(volume("pvc-1", 4 * MIB)).expect("room");
    plugin.snapshot("snap-1", "pvc-1").expect("room");
    wrong(
        &|it| it.capacity_range = Some(CapacityRange { required_bytes: 0, limit_bytes: MIB }),
        Code::AlreadyExists,
        "of another size or content",
    );
    wrong(
        &|it| {
            it.name = "pvc-2".into();
            it.volume_content_source = Some(from("snap-1"));
        },
        Code::OutOfRange,
        "the source of the volume has",
    );
    plugin.create(volume("pvc-2", MIB)).expect("room");
    refused(plugin.snapshot("snap-1", "pvc-2"), Code::AlreadyExists, "of another volume");
    refused(plugin.snapshot("snap-2", "none"), Code::NotFound, "there is no volume");
    let expand = |id: &str, capacity_range| -> Result<ControllerExpandVolumeResponse, Status> {
        let request = ControllerExpandVolumeRequest { volume_id: id.into(), capacity_range };
        plugin.call("Controller/ControllerExpandVolume", request)
    };
    refused(expand("pvc-1", None), Code::InvalidArgument, "capacity_range is missing");
    let less = CapacityRange { required_bytes: MIB, limit_bytes: MIB };
    refused(expand("pvc-1", Some(less)), Code::OutOfRange, "volumes do not shrink");

    refused(plugin.stage("none", &staging), Code::NotFound, "there is no volume");
    refused(plugin.stage("pvc-1", Path::new("a")), Code::InvalidArgument, "give one from the root");
    let request = publication("pvc-1", &staging, &target);
    refused(plugin.publish(request.clone()), Code::FailedPrecondition, "call NodeStageVolume");
    plugin.stage("pvc-1", &staging).expect("it is there");
    refused(plugin.stage("pvc-2", &staging), Code::AlreadyExists, "something else is mounted there");
    let single = Some(capability(VolumeAccess::SingleNodeSingleWriter));
    plugin
        .publish(NodePublishVolumeRequest { volume_capability: single.clone(), ..request.clone() })
        .expect("staged");
    let second = publication("pvc-1", &staging, &scratch.0.join("second"));
    let second = NodePublishVolumeRequest { volume_capability: single, ..second };
    refused(plugin.publish(second), Code::FailedPrecondition, "is for one program at a time");
    let asked =
        |path: &Path| NodeGetVolumeStatsRequest { volume_id: "pvc-1".into(), volume_path: text(path) };
    let stats = |path: &Path| -> Result<NodeGetVolumeStatsResponse, Status> {
        plugin.call("Node/NodeGetVolumeStats", asked(path))
    };
    refused(stats(&scratch.0), Code::NotFound, "is not mounted on");
    let file = File::create(target.join("open")).expect("room");
    let early = NodeUnmountRequest { volume_id: "pvc-1".into(), path: text(&target) };
    let busy: Result<EmptyMessage, Status> = plugin.call("Node/NodeUnpublishVolume", early);
    refused(busy, Code::FailedPrecondition, "busy");
    drop(file);
    plugin.unpublish("pvc-1", &target).expect("nobody uses it");
    plugin.unstage("pvc-1", &staging).expect("nobody uses it");
    let none: Result<EmptyMessage, Status> =
        plugin.call("Controller/ControllerPublishVolume", EmptyMessage {});
    refused(none, Code::Unimplemented, "no call of this driver");
    let validated = |mode| -> ValidateVolumeCapabilitiesResponse {
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: "pvc-1".into(),
            volume_capabilities: vec![capability(mode)],
            ..ValidateVolumeCapabilitiesRequest::default()
        };
        plugin.call("Controller/ValidateVolumeCapabilities", request).expect("it is there")
    };
    assert!(validated(VolumeAccess::SingleNodeWriter).confirmed.is_some());
    assert!(validated(VolumeAccess::MultiNodeReader).message.contains("a single node"));
}

#[test]
fn lists_have_pages_and_capacity_is_that_of_the_mount() {
    let test = "lists_have_pages_and_capacity_is_that_of_the_mount";
    let Some(mounted) = can_serve(test).then(|| Mounted::new(test, "size=64M")).flatten() else { return };
    let scratch = Scratch::new();
    let plugin = Plugin::start(&scratch, &["--store", &text(mounted.dir())]);
    for name in ["b", "a", "a name/with what no ID has"] {
        plugin.create(volume(name, MIB)).expect("room");
        plugin
            .snapshot(&format!("of {name}"), &plugin.create(volume(name, MIB)).expect("there").volume_id)
            .expect("room");
    }
    let list = |max_entries, token: &str| -> Result<ListVolumesResponse, Status> {
        let request = ListVolumesRequest { max_entries, starting_token: token.into() };
        plugin.call("Controller/ListVolumes", request)
    };
    let ids = |list: &ListVolumesResponse| -> Vec<String> {
        list.entries.iter().filter_map(|entry| Some(entry.volume.as_ref()?.volume_id.clone())).collect()
    };
    let all = ids(&list(0, "").expect("all"));
    assert_eq!((all.len(), all[0].as_str(), all[1].as_str()), (3, "a", "b"));
    let first = list(2, "").expect("two");
    plugin.delete("b").expect("nobody uses it");
    let rest = list(2, &first.next_token).expect("the rest");
    assert_eq!(
        (ids(&first), ids(&rest), rest.next_token.as_str()),
        (all[..2].to_vec(), all[2..].to_vec(), "")
    );
    refused(list(0, "invalid"), Code::Aborted, "list from the beginning");
    let snapshots = |request: ListSnapshotsRequest| -> Vec<String> {
        let list: ListSnapshotsResponse = plugin.call("Controller/ListSnapshots", request).expect("a list");
        list.entries
            .iter()
            .filter_map(|entry| Some(entry.snapshot.as_ref()?.source_volume_id.clone()))
            .collect()
    };
    assert_eq!(snapshots(ListSnapshotsRequest::default()).len(), 3);
    let of_volume = ListSnapshotsRequest { source_volume_id: "b".into(), ..ListSnapshotsRequest::default() };
    assert_eq!(snapshots(of_volume), ["b"]);
    let one = ListSnapshotsRequest { snapshot_id: "none".into(), ..ListSnapshotsRequest::default() };
    assert!(snapshots(one).is_empty());
    let room =
        |request| -> GetCapacityResponse { plugin.call("Controller/GetCapacity", request).expect("room") };
    let told = room(GetCapacityRequest::default());
    assert!((1..=64 * MIB).contains(&told.available_capacity), "{told:?}");
    assert_eq!(told.maximum_volume_size, Some(64 * MIB));
    let elsewhere = NodeTopology { segments: [("csi.sluicefs/node".to_owned(), "there".to_owned())].into() };
    let asked = GetCapacityRequest { accessible_topology: Some(elsewhere), ..GetCapacityRequest::default() };
    assert_eq!(room(asked).available_capacity, 0);
    let info: NodeGetInfoResponse = plugin.call("Node/NodeGetInfo", EmptyMessage {}).expect("its name");
    assert_eq!(info.node_id, "here");
}

#[test]
fn a_plugin_that_cannot_begin_says_what_to_do() {
    let scratch = Scratch::new();
    let other = format!("unix://{}", scratch.0.join("other.sock").display());
    let said = |arguments: &[&str], status| {
        let begin = ["csi", "--endpoint", &other].into_iter();
        sluice(begin.chain(arguments.iter().copied())).complaint(status)
    };
    let wrong = sluice(["csi", "--endpoint", "tcp://h:1", "--store", "/x"]).complaint(2);
    assert!(wrong.contains("give a socket as unix:///PATH"), "{wrong}");
    let wrong = said(&["--store", "/x", "--driver-name", "a/b"], 2);
    assert!(wrong.contains("a driver has a name such as csi.sluicefs"), "{wrong}");
    let test = "a_plugin_that_cannot_begin_says_what_to_do";
    let Some(mounted) = can_serve(test).then(|| Mounted::new(test, "rw")).flatten() else { return };
    assert!(said(&["--store", "/no/such/store"], 1).contains("/no/such/store"));
    let (empty, mount) = (text(&scratch.dir("empty")), text(&scratch.0.join("mount")));
    assert!(said(&["--store", &empty, "--mount", &mount], 1).contains("sluice mkfs"));
    let options = said(&["--store", &text(mounted.dir()), "-o", "noatime"], 2);
    assert!(options.contains("leave out --mount and -o"), "{options}");
    let _plugin = Plugin::start(&scratch, &["--store", &text(mounted.dir())]);
    let socket = format!("unix://{}", scratch.0.join("csi.sock").display());
    let second = ["csi", "--endpoint", &socket, "--store", &text(mounted.dir())].map(str::to_owned);
    assert!(sluice(second).complaint(1).contains("another process listens there"));
}

#[test]
fn the_example_manifests_name_what_the_program_has() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/csi");
    let help = sluice(["csi", "--help"]).well();
    let mut read = String::new();
    for name in ["driver", "controller", "node", "storage-class", "snapshot-class"] {
        let path = dir.join(format!("{name}.yaml"));
        let manifest =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(manifest.contains("csi.sluicefs"), "{name}: the driver's name");
        read += &manifest;
    }
    assert!(help.contains("[default: csi.sluicefs]"), "{help}");
    let arguments: Vec<&str> = read.lines().filter_map(|line| line.trim().strip_prefix("- --")).collect();
    let ours = ["endpoint", "store", "node-id"];
    for name in ours {
        assert!(help.contains(&format!("--{name} ")), "{help}");
        let uses = arguments.iter().filter(|argument| argument.starts_with(&format!("{name}="))).count();
        assert_eq!(uses, 2, "the controller and the nodes say --{name}");
    }
    assert_eq!(arguments.iter().filter(|argument| **argument == "endpoint=unix:///csi/csi.sock").count(), 2);
    // The sidecars find the socket in a directory that they share with the program.
    let sidecars =
        arguments.iter().filter(|argument| argument.starts_with("csi-address=")).collect::<Vec<_>>();
    assert!(
        !sidecars.is_empty() && sidecars.iter().all(|argument| **argument == "csi-address=/csi/csi.sock"),
        "{sidecars:?}"
    );
}
