//! Credentials: the file in which tools of S3 keep keys, for one that has none in its environment.
//!
//! ```text
//!   [default]                          AWS_PROFILE names another part
//!   aws_access_key_id = ...
//!   aws_secret_access_key = ...
//!   aws_session_token = ...            if there is one
//! ```

use std::path::PathBuf;
use std::{env, fs};

/// Keys that are shown nowhere.
#[derive(PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) key: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

/// Credentials from the file `AWS_SHARED_CREDENTIALS_FILE`, or `~/.aws/credentials`; None if the environment has
/// credentials, or if no file has any.
pub(crate) fn from_file() -> Option<Credentials> {
    if env::var_os("AWS_ACCESS_KEY_ID").is_some() {
        return None;
    }
    let named = env::var_os("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
    let usual = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".aws/credentials"));
    let text = fs::read_to_string(named.or_else(usual)?).ok()?;
    parse(&text, &env::var("AWS_PROFILE").unwrap_or_else(|_| "default".into()))
}

fn parse(text: &str, profile: &str) -> Option<Credentials> {
    let mut is_ours = false;
    let (mut key, mut secret, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_ours = name.trim() == profile;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| is_ours) {
            let slot = match name.trim() {
                "aws_access_key_id" => &mut key,
                "aws_secret_access_key" => &mut secret,
                "aws_session_token" => &mut token,
                _ => continue,
            };
            *slot = Some(value.trim().to_owned());
        }
    }
    Some(Credentials { key: key?, secret: secret?, token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_profile_are_found_and_no_half_of_them() {
        let text = "# mine\n[default]\naws_access_key_id = A\nregion=x\naws_secret_access_key=s=1\n\
                    [ other ]\naws_access_key_id=B\n[third]\naws_secret_access_key=t\n";
        let found = parse(text, "default").expect("both are there");
        assert!(found.key == "A" && found.secret == "s=1" && found.token.is_none());
        assert!(parse(text, "other").is_none() && parse(text, "third").is_none());
        assert!(parse(text, "fourth").is_none() && parse("", "default").is_none());
    }
}
