//! Members, leases and connections, as one program.

mod etcd;
mod secure;
