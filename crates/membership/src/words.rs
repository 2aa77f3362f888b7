//! Words: errors of TLS and HTTP in plain words, each with a cure. The libraries themselves tell names of their variants.

use rustls::{CertificateError, Error as TlsError};
use std::error::Error;
use std::io;
use ureq::Timeout;

/// The words of webpki about a server that shows the certificate of an authority.
const AUTHORITY_SHOWN: &str = "CaUsedAsEndEntity";

/// An error of a connection by TLS in words about the other side.
pub(crate) fn of_tls(error: &TlsError) -> String {
    use CertificateError as Certificate;
    let text = match error {
        TlsError::InvalidCertificate(why) => match why {
            Certificate::UnknownIssuer | Certificate::BadSignature => {
                "its certificate is of another authority than those that are believed here: bring that authority's certificate here"
            }
            Certificate::Expired | Certificate::ExpiredContext { .. } => {
                "its certificate has expired: make it a new one, or set the clock of this machine"
            }
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
                "its certificate is not valid yet: set the clocks of both machines"
            }
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
                "its certificate is for another name: give the address with the name that the certificate has"
            }
            Certificate::Other(other) if other.to_string().contains(AUTHORITY_SHOWN) => {
                "it shows the certificate of an authority as its own: give it one that the authority has signed"
            }
            _ => "its certificate cannot be believed: make it a new one",
        },
        TlsError::NoCertificatesPresented => "it shows no certificate: give it one of the authority",
        TlsError::AlertReceived(_) => {
            "it does not believe the certificate that is shown here, or wants one: is that of its authority?"
        }
        TlsError::InconsistentKeys(_) => {
            "a certificate and its key do not belong together: bring both here again"
        }
        TlsError::InvalidMessage(_) => "it does not speak TLS: is that its address, and https right?",
        TlsError::PeerIncompatible(_) => "it speaks another version of TLS: use a newer one there",
        _ => "the two could not agree on a connection by TLS: are both of one authority?",
    };
    text.to_owned()
}

/// An error of a connection to an etcd in words about that etcd.
pub(crate) fn of_http(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
            "it cannot be reached in time (is the address right?)".to_owned()
        }
        ureq::Error::Timeout(_) => "no answer in time (does it hang, or is the network slow?)".to_owned(),
        ureq::Error::HostNotFound => "there is no host of that name: mend its address".to_owned(),
        ureq::Error::ConnectionFailed => "no connection can be made (is the address right?)".to_owned(),
        ureq::Error::Rustls(error) => of_tls(error),
        ureq::Error::Io(error) => of_io(error),
        ureq::Error::BadUri(_) => "this is no address: give http://HOST:PORT or https://HOST:PORT".to_owned(),
        // The answer is no HTTP, or HTTP that no etcd speaks.
        _ => "it does not speak HTTP as an etcd does: is that its address, and is it reached by http or by https?".to_owned(),
    }
}

/// As [`of_http`], of an error that may wrap such a one. The system's own errors have words.
pub(crate) fn of_io(error: &io::Error) -> String {
    let Some(cause) = error.get_ref() else { return error.to_string() };
    let cause: &(dyn Error + 'static) = cause;
    match (cause.downcast_ref::<ureq::Error>(), cause.downcast_ref::<TlsError>()) {
        (Some(error), _) => of_http(error),
        (_, Some(error)) => of_tls(error),
        (None, None) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it ended the connection before it had answered".to_owned()
        }
        (None, None) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::UnixTime;
    use rustls::{AlertDescription, InconsistentKeys, InvalidMessage, OtherError, PeerIncompatible};
    use sluice_sync::Arc;

    #[test]
    fn troubles_with_tls_say_what_to_do_and_name_no_variant() {
        let certificate = TlsError::InvalidCertificate;
        let shown = OtherError(Arc::new(io::Error::other(AUTHORITY_SHOWN)));
        for (error, cure) in [
            (
                certificate(CertificateError::UnknownIssuer),
                "of another authority than those that are believed here",
            ),
            (certificate(CertificateError::Expired), "its certificate has expired"),
            (certificate(CertificateError::NotValidYet), "set the clocks of both machines"),
            (
                certificate(CertificateError::NotValidYetContext {
                    time: UnixTime::now(),
                    not_before: UnixTime::now(),
                }),
                "its certificate is not valid yet",
            ),
            (certificate(CertificateError::NotValidForName), "its certificate is for another name"),
            (certificate(CertificateError::Other(shown)), "give it one that the authority has signed"),
            (certificate(CertificateError::Revoked), "its certificate cannot be believed: make it a new one"),
            (TlsError::NoCertificatesPresented, "it shows no certificate: give it one of the authority"),
            (TlsError::AlertReceived(AlertDescription::UnknownCA), "is that of its authority?"),
            (TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch), "do not belong together"),
            (TlsError::InvalidMessage(InvalidMessage::InvalidContentType), "it does not speak TLS"),
            (
                TlsError::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic),
                "it speaks another version of TLS: use a newer one there",
            ),
            (TlsError::HandshakeNotComplete, "the two could not agree on a connection by TLS"),
        ] {
            let line = of_http(&ureq::Error::Io(io::Error::other(error)));
            assert!(line.contains(cure) && !line.contains("Certificate"), "{line}");
        }
    }

    #[test]
    fn troubles_with_an_etcd_say_what_to_do_and_name_no_variant() {
        for (error, cure) in [
            (ureq::Error::Timeout(Timeout::Global), "no answer in time (does it hang"),
            (ureq::Error::Timeout(Timeout::Connect), "it cannot be reached in time (is the address"),
            (ureq::Error::HostNotFound, "there is no host of that name: mend its address"),
            (ureq::Error::ConnectionFailed, "no connection can be made (is the address right?)"),
            (ureq::Error::BadUri("x".into()), "this is no address: give http://HOST:PORT"),
            (ureq::Error::LargeResponseHeader(9, 8), "it does not speak HTTP as an etcd does"),
        ] {
            let line = of_io(&io::Error::other(error));
            assert!(line.starts_with(cure), "{line}");
        }
        let cut = io::Error::new(io::ErrorKind::UnexpectedEof, "Peer disconnected");
        assert_eq!(of_io(&cut), "it ended the connection before it had answered");
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(of_io(&refused), refused.to_string());
    }
}
