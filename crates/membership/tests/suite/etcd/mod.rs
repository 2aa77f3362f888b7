//! The membership in etcd: a real etcd, which each test starts for itself.

mod server;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use server::{LIMIT, Server, ask, send, stop, until};
use sluice_membership::{Etcd, EtcdAccess, Membership, NodeId};
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

/// No node of these tests is to die because the machine is slow, and a call may take a quarter of it.
const TTL: Duration = Duration::from_secs(20);
/// Where nobody listens.
const NOBODY: &str = "127.0.0.1:1";

fn access(endpoints: &[&str]) -> EtcdAccess {
    EtcdAccess { endpoints: endpoints.iter().map(ToString::to_string).collect(), ..EtcdAccess::default() }
}

fn connect(server: &Server) -> Etcd {
    Etcd::connect(&access(&[&server.address]), "test", 2, TTL).expect("etcd answers")
}

/// Renews the lease of `node` until `is_so`.
fn renewing(membership: &Etcd, node: NodeId, what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < limit, "in vain: {what}");
        assert!(membership.renew(node).expect("etcd answers"), "{what}: renewed in time");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_one_machine_changes_another_sees() {
    let Some(server) = Server::start("what_one_machine_changes_another_sees") else { return };
    let (a, b) = (connect(&server), connect(&server));
    let other = Etcd::connect(&access(&[&server.address]), "test", 3, TTL);
    assert!(other.is_err_and(|error| error.to_string().contains("other shards")), "another cluster");
    let (first, second) = (a.join("here:1").expect("a member"), b.join("there:2").expect("a member"));
    assert!(second > first, "numbers grow");
    let seen = |membership: &Etcd| membership.view(0, Duration::ZERO).expect("reached");
    until("both see both", || [&a, &b].iter().all(|one| seen(one).members.len() == 2));
    assert_eq!(seen(&b).members[&first].address, "here:1");
    assert!(a.claim(first, 1, 0).expect("reached"));
    assert!(!b.claim(second, 1, 0).expect("reached"), "it has a living master");
    let view = b.view(seen(&b).revision, Duration::ZERO).expect("reached");
    until("the claim is seen", || seen(&b).owners[1].is_some_and(|owner| owner.node == first));
    let epoch = seen(&b).owners[1].expect("claimed").epoch;
    assert!(epoch > second.0 && view.owners.len() == 2);
    assert!(!b.claim(second, 1, epoch).expect("reached"), "its master lives");
    assert!(!b.claim(second, 7, 0).expect("reached"), "there is no such shard");
    assert!(!b.resign(second, 1, epoch + 1).expect("reached"), "of another epoch");
    assert!(a.resign(first, 1, epoch).expect("reached"));
    assert!(b.claim(second, 1, 0).expect("reached"));
    until("the new epoch is seen", || seen(&a).owners[1].is_some_and(|owner| owner.epoch > epoch));
    assert!(!a.fenced(second).expect("reached"), "it lives");
    // A view waits for what is newer, and no longer than it is told.
    let revision = seen(&a).revision;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| a.view(revision, LIMIT).expect("reached"));
        b.leave(second).expect("reached");
        assert!(waiting.join().expect("no panic").revision > revision);
    });
    until("it has left", || seen(&a).members.len() == 1);
    assert_eq!(seen(&a).owners, [None, None]);
    assert!(!b.renew(second).expect("reached"), "it is no member any more");
}

#[test]
fn a_member_that_does_not_renew_is_dead_and_its_shard_free_when_the_lease_is_over() {
    let name = "a_member_that_does_not_renew_is_dead_and_its_shard_free_when_the_lease_is_over";
    let Some(server) = Server::start(name) else { return };
    let (a, b) = (connect(&server), connect(&server));
    let (silent, other) = (a.join("silent").expect("a member"), b.join("other").expect("a member"));
    assert!(a.claim(silent, 0, 0).expect("reached"));
    let seen = || b.view(0, Duration::ZERO).expect("reached");
    until("the claim is seen", || seen().owners[0].is_some());
    let epoch = seen().owners[0].expect("claimed").epoch;
    let claimed = Cell::new(false);
    renewing(&b, other, "it is dead", || {
        // Claiming and renewing are asked of etcd, a view may be old: the lease may end between any two of the calls.
        if seen().is_alive(silent) {
            claimed.set(b.claim(other, 0, epoch).expect("reached"));
            assert!(!claimed.get() || !a.renew(silent).expect("reached"), "a living master lost its shard");
        }
        claimed.get() || !seen().is_alive(silent)
    });
    assert!(!a.renew(silent).expect("reached"), "too late");
    until("all see it", || !seen().is_alive(silent));
    assert!(seen().members.contains_key(&silent), "until it is fenced");
    // The view may not show the new claim yet.
    assert!(claimed.get() || b.claim(other, 0, epoch).expect("reached"));
    until("its shard has a new master", || {
        seen().owners[0].is_some_and(|owner| owner.node == other && owner.epoch > epoch)
    });
    assert!(b.fenced(silent).expect("reached") && !b.fenced(silent).expect("reached"), "once");
    until("it is forgotten", || seen().is_gone(silent));
    assert!(!a.claim(silent, 1, 0).expect("reached"), "the dead claim nothing");
}

#[test]
fn an_etcd_that_does_not_answer_is_an_error_after_a_part_of_a_lease() {
    let Some(server) = Server::start("an_etcd_that_does_not_answer_is_an_error_after_a_part_of_a_lease")
    else {
        return;
    };
    let membership = connect(&server);
    let node = membership.join("here").expect("a member");
    stop(server.process.id());
    assert!(membership.renew(node).is_err());
    assert!(membership.join("there").is_err() && membership.claim(node, 0, 0).is_err());
    send("-CONT", server.process.id());
    until("etcd answers again", || {
        membership.view(0, Duration::ZERO).is_ok() && membership.renew(node).is_ok()
    });
    let passed_over =
        Etcd::connect(&access(&[NOBODY, &server.address]), "test", 2, TTL).expect("the second one answers");
    assert!(passed_over.join("elsewhere").is_ok());
}

#[test]
fn an_etcd_that_asks_for_certificates_or_a_password_gets_them_and_refuses_others() {
    let test = "an_etcd_that_asks_for_certificates_or_a_password_gets_them_and_refuses_others";
    let secured = Server::start_with(test, "https", |dir| {
        let option = |name: &str, file: &str| format!("--{name}={}", certified(dir).join(file).display());
        let files = [("cert-file", "etcd.pem"), ("key-file", "etcd.key"), ("trusted-ca-file", "ca.pem")];
        let files = files.map(|(name, file)| option(name, file));
        files.into_iter().chain(["--client-cert-auth".to_owned()]).collect()
    });
    let Some(secured) = secured else { return };
    let file = |name: &str| Some(secured.dir.join(name));
    let full = EtcdAccess {
        ca: file("ca.pem"),
        certificate: file("etcd.pem").zip(file("etcd.key")),
        ..access(&[&secured.address])
    };
    let membership = Etcd::connect(&full, "test", 1, TTL).expect("it believes us");
    let node = membership.join("here").expect("a member");
    assert!(membership.renew(node).expect("reached"));
    let bare = EtcdAccess { certificate: None, ..full.clone() };
    assert!(Etcd::connect(&bare, "test", 1, TTL).is_err(), "without a certificate");
    let stranger = secured.dir.join("stranger");
    std::fs::create_dir(&stranger).expect("made");
    certified(&stranger);
    let wrong = EtcdAccess { ca: Some(stranger.join("ca.pem")), ..full };
    assert!(Etcd::connect(&wrong, "test", 1, TTL).is_err(), "an etcd that it does not believe");

    let Some(server) = Server::start(&format!("{test}-2")) else { return };
    for (method, arguments) in [
        ("user/add", r#"{"name":"root","password":"secret"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("enable", "{}"),
    ] {
        post(&server, &format!("auth/{method}"), arguments);
    }
    let with = |password: &str| EtcdAccess {
        user: Some(("root".into(), password.into())),
        ..access(&[&server.address])
    };
    assert!(Etcd::connect(&access(&[&server.address]), "test", 1, TTL).is_err(), "nobody");
    assert!(Etcd::connect(&with("guess"), "test", 1, TTL).is_err(), "a wrong password");
    let membership = Etcd::connect(&with("secret"), "test", 1, TTL).expect("it lets us in");
    let node = membership.join("here").expect("a member");
    assert!(membership.claim(node, 0, 0).expect("reached"));
    until("the watch sees it", || {
        membership.view(0, Duration::ZERO).expect("reached").owners[0].is_some_and(|owner| owner.node == node)
    });
    assert!(!format!("{:?}", with("secret")).contains("secret"));
}

/// Makes a call, as JSON, that needs no user.
fn post(server: &Server, method: &str, arguments: &str) {
    let head = format!("POST /v3/{method} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", arguments.len());
    let answer = ask(&server.address, &(head + arguments)).expect("it answers");
    assert!(answer.starts_with("HTTP/1.0 200"), "{method}: {answer}");
}

/// Makes `ca.pem`, and `etcd.pem` with `etcd.key` that it signed, in `dir`.
fn certified(dir: &Path) -> &Path {
    if dir.join("etcd.key").exists() {
        return dir;
    }
    let mut params = CertificateParams::new(Vec::new()).expect("no name");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("random numbers");
    let ca = params.self_signed(&key).expect("signed");
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("random numbers");
    let params = CertificateParams::new(vec!["127.0.0.1".into()]).expect("an address");
    let signed = params.signed_by(&key, &issuer).expect("signed");
    for (name, label, der) in [
        ("ca.pem", "CERTIFICATE", ca.der().as_ref()),
        ("etcd.pem", "CERTIFICATE", signed.der().as_ref()),
        ("etcd.key", "PRIVATE KEY", key.serialize_der().as_ref()),
    ] {
        let text = format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64.encode(der));
        std::fs::write(dir.join(name), text).expect("written");
    }
    dir
}

#[test]
fn a_lease_that_etcd_cannot_keep_and_an_address_that_is_none_are_refused() {
    let refused = |endpoint: &str, cluster: &str, ttl: Duration| {
        let error = Etcd::connect(&access(&[endpoint]), cluster, 1, ttl).err().expect("refused");
        error.kind() == std::io::ErrorKind::InvalidInput
    };
    assert!(refused(NOBODY, "test", Duration::from_secs(3)));
    assert!(refused(NOBODY, "test", Duration::from_millis(4500)));
    assert!(refused(NOBODY, "a/b", TTL));
    assert!(refused("unix://socket", "test", TTL));
}
