//! Which credentials the proxy of a run adds, taken from where the configuration says.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Manager;
use crate::config::{Injection, SecretSource};
use crate::error::{Error, Result};
use crate::model::Network;
use crate::model::text::Location;
use crate::run::{InjectedHeader, Injector, RunError, RunSpec, SYSTEM, read_named};
use crate::store::Plan;

/// The largest file that holds a credential.
const LARGEST: u64 = 64 << 10;

/// The shortest credential that is looked for in other variables.
const SHORTEST: usize = 8;

/// The largest file of certificates.
const CERTIFICATES: u64 = 8 << 20;

impl Manager {
    /// Prepares what the configuration wants to be added to the requests of a command.
    pub(super) fn inject(&self, plan: &Plan, spec: &mut RunSpec) -> Result<()> {
        let wanted = self.settings_of(plan)?.run.inject;
        // Without a network nothing can be added, nor asked for.
        if wanted.is_empty() || spec.look.network == Network::None {
            return Ok(());
        }
        let mut headers = Vec::new();
        for one in wanted {
            let listed = matches!(spec.look.network, Network::Allow(_));
            if !listed || !spec.look.network.permits(&one.host, one.port) {
                return Err(refused(
                    &one,
                    "the network of the command must be a list that has it (`--network allow:…`, `run.network`)",
                ));
            }
            let value = self.secret(&one.from).map_err(|why| refused(&one, &why))?;
            let holds = |(_, held): &&(Location, Location)| {
                let mut parts = held.as_bytes().windows(value.len().max(1));
                value.len() >= SHORTEST && parts.any(|part| part == value.as_bytes())
            };
            if let Some((name, _)) = spec.environment.iter().find(holds) {
                let why = format!("the command would find it in the variable {name}");
                return Err(refused(&one, &why));
            }
            let value = one.format.replace("{}", &value);
            if value.is_empty() || value.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
                return Err(refused(
                    &one,
                    "the credential is empty, or cannot be a header",
                ));
            }
            headers.push(InjectedHeader {
                host: one.host,
                port: one.port,
                name: one.header,
                value,
            });
        }
        let fail = |why| RunError::Injection {
            host: headers
                .first()
                .map(|one| one.host.clone())
                .unwrap_or_default(),
            why,
        };
        let roots = self.roots().map_err(fail)?;
        let injector = Injector::new(headers.clone(), &roots).map_err(fail)?;
        spec.authority = Some(injector.authority.clone());
        spec.injector = Some(Arc::new(injector));
        Ok(())
    }

    fn callers(&self, name: &str) -> Option<&std::ffi::OsStr> {
        let mut all = self.options.environment.iter();
        let found = all.find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_os_str())
    }

    /// The credential; otherwise why there is none, without any of it.
    fn secret(&self, from: &SecretSource) -> std::result::Result<String, String> {
        let (bytes, what) = match from {
            SecretSource::Variable(name) => {
                let value = self
                    .callers(name)
                    .map(|value| value.as_encoded_bytes().to_vec());
                let value = value.ok_or_else(|| format!("the variable {name} is not set"))?;
                (value, format!("the variable {name}"))
            }
            SecretSource::File(path) => {
                let home = self.options.user_home.as_deref().unwrap_or(Path::new("/"));
                let path = match path.strip_prefix("~") {
                    Ok(rest) => home.join(rest),
                    Err(_) => path.clone(),
                };
                let bytes = read_named(&path, LARGEST)?;
                (bytes, format!("the file '{}'", Location::from(path)))
            }
        };
        let text = String::from_utf8(bytes).map_err(|_| format!("{what} is not text"))?;
        Ok(text.trim_end_matches(['\n', '\r']).to_owned())
    }

    /// The certificates by which this machine verifies servers.
    fn roots(&self) -> std::result::Result<Vec<u8>, String> {
        let named = self.callers("SSL_CERT_FILE").map(PathBuf::from);
        if let Some(named) = named {
            return read_named(&named, CERTIFICATES);
        }
        let mut found = SYSTEM
            .iter()
            .filter_map(|path| read_named(Path::new(path), CERTIFICATES).ok());
        found.next().ok_or_else(|| {
            "this system has no file of trusted certificates: set SSL_CERT_FILE".to_owned()
        })
    }
}

fn refused(one: &Injection, why: &str) -> Error {
    let (host, why) = (one.host.clone(), why.to_owned());
    RunError::Injection { host, why }.into()
}
