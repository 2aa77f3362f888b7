//! Errors: what goes wrong, as a code of gRPC and one line.

use crate::failures::lacks_room;
use sluice_console::failure::{Failure, in_words};
use sluice_fuse::is_dead;
use std::io::{self, ErrorKind};
use std::path::Path;
use tonic::{Code, Status};

/// The text of a failure.
pub(super) fn in_one_line(failure: &Failure) -> String {
    in_words(&failure.to_string().replace('\n', " "))
}

/// An error of the system, or of the server of the mount, about `path`.
pub(super) fn of_mount(path: &Path) -> impl Fn(io::Error) -> Status {
    move |error| {
        let code = match error.kind() {
            _ if is_dead(&error) => Code::Unavailable,
            _ if lacks_room(&error) => Code::ResourceExhausted,
            ErrorKind::ReadOnlyFilesystem | ErrorKind::ResourceBusy => Code::FailedPrecondition,
            _ => Code::Internal,
        };
        Status::new(code, in_one_line(&Failure::from(error).in_context(path.display())))
    }
}

/// A field that must be given.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is empty.
pub(super) fn given<'a>(name: &str, text: &'a str) -> Result<&'a str, Status> {
    match text {
        "" => Err(Status::invalid_argument(format!("the field {name} is missing: give it"))),
        text => Ok(text),
    }
}

/// A volume that is not there.
pub(super) fn no_volume(id: &str) -> Status {
    Status::not_found(format!("there is no volume {id:?}: ListVolumes names those of this driver"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_has_a_code_and_one_line_without_numbers() {
        let told = |number| {
            let status = of_mount(Path::new("/m/v"))(io::Error::from_raw_os_error(number));
            (status.code(), status.message().to_owned())
        };
        assert_eq!(told(28), (Code::ResourceExhausted, "/m/v: No space left on device".into()));
        assert_eq!(told(107).0, Code::Unavailable);
        assert!(told(107).1.contains("sluice umount"));
        assert_eq!(told(16).0, Code::FailedPrecondition);
        assert_eq!(told(5).0, Code::Internal);
    }
}
