//! Originals for the conformance suite, made by the program itself: methods `fixture`, `fixture_contents` and `fixture_change`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::conformance::{Case, Fixture, FixtureDir};
use super::super::{Access, Target, TargetLocation};
use super::program::Program;
use super::{ask, base64, wire};
use crate::event::Unobserved;
use crate::fs::Dir;
use crate::model::text::Location;
use crate::model::{Options, ResourceId, ResourcePath, SystemIdSource};

type Plain<T> = Result<T, String>;

/// Where the originals of a program come from.
pub struct PluginFixture {
    program: Arc<Program>,
    directory: PathBuf,
}

/// One original.
struct PluginCase {
    program: Arc<Program>,
    /// Everything of this case.
    room: FixtureDir,
    target: Target,
    known: (ResourcePath, Vec<u8>),
    absent: Option<ResourcePath>,
    on_the_way: Vec<ResourcePath>,
}

#[derive(Deserialize)]
struct Item {
    path: ResourcePath,
    base64: String,
}

#[derive(Deserialize)]
#[serde(tag = "kind", content = "value", rename_all = "snake_case")]
enum WireLocation {
    Path(Location),
    Url(String),
    Opaque(String),
}

#[derive(Deserialize)]
struct FixtureAnswer {
    #[serde(rename = "type")]
    kind: String,
    location: WireLocation,
    #[serde(default)]
    options: Options,
    known: Item,
    absent: Option<ResourcePath>,
    #[serde(default)]
    on_the_way: Vec<ResourcePath>,
}

#[derive(Deserialize)]
struct ContentsAnswer {
    contents: Vec<Item>,
}

fn bytes(item: &Item) -> Plain<Vec<u8>> {
    let decoded = base64::decode(&item.base64);
    decoded.ok_or_else(|| format!("the content of '{}' is not base64", item.path))
}

fn plain<T, E: std::error::Error>(answer: Result<T, E>) -> Plain<T> {
    answer.map_err(|error| match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    })
}

fn call<T: serde::de::DeserializeOwned>(program: &Program, verb: &str, params: Value) -> Plain<T> {
    plain(ask(program, verb, None, &params, &Unobserved))
}

impl PluginFixture {
    /// Those of a program, if it makes any.
    pub(in crate::strategy) fn of(program: &Arc<Program>, directory: &Path) -> Option<Self> {
        let known = program.handshake().ok()?;
        known.has("fixture").then(|| Self {
            program: Arc::clone(program),
            directory: directory.to_owned(),
        })
    }
}

impl Fixture for PluginFixture {
    fn fresh(&self) -> Plain<Box<dyn Case>> {
        let room = FixtureDir::new(&self.directory)?;
        let own = plain(room.open())?;
        plain(own.make_dir(b"fixture", 0o700))?;
        let at = Location::from(own.path().join("fixture"));
        let made: FixtureAnswer = call(&self.program, "fixture", json!({"directory": at}))?;
        let known = (made.known.path.clone(), bytes(&made.known)?);
        Ok(Box::new(PluginCase {
            program: Arc::clone(&self.program),
            room,
            target: Target {
                resource_id: ResourceId::new(&SystemIdSource),
                name: "fixture".to_owned(),
                kind: made.kind,
                location: match made.location {
                    WireLocation::Path(path) => TargetLocation::Path(path),
                    WireLocation::Url(url) => TargetLocation::Url(url),
                    WireLocation::Opaque(text) => TargetLocation::Opaque(text),
                },
                options: made.options,
                carved: Vec::new(),
            },
            known,
            absent: made.absent,
            on_the_way: made.on_the_way,
        }))
    }
}

impl Case for PluginCase {
    fn target(&self) -> Target {
        self.target.clone()
    }

    fn area(&self) -> Option<&Path> {
        let known = self.program.known();
        let needed = known.is_some_and(|known| known.capabilities.area);
        needed.then_some(self.room.area())
    }

    fn area_entries(&self) -> Plain<usize> {
        self.room.area_entries()
    }

    fn commit_area(&self) -> Plain<Option<PathBuf>> {
        match self.area() {
            Some(_) => self.room.commit_area(),
            None => Ok(None),
        }
    }

    fn clear_commit_areas(&self) -> Plain<()> {
        self.room.clear_commit_areas()
    }

    fn known(&self) -> (ResourcePath, Vec<u8>) {
        self.known.clone()
    }

    fn absent(&self) -> Option<ResourcePath> {
        self.absent.clone()
    }

    fn on_the_way(&self) -> Vec<ResourcePath> {
        self.on_the_way.clone()
    }

    fn obstacles(&self) -> Vec<ResourcePath> {
        Vec::new()
    }

    fn ways_out(&self) -> Vec<ResourcePath> {
        Vec::new()
    }

    fn fingerprint(&self) -> Plain<String> {
        Ok(format!("{:?}", self.contents()?))
    }

    fn state(&self) -> Plain<BTreeMap<ResourcePath, String>> {
        let text = |(path, content): (ResourcePath, Vec<u8>)| (path, format!("{content:?}"));
        Ok(self.contents()?.into_iter().map(text).collect())
    }

    fn contents(&self) -> Plain<Vec<(ResourcePath, Vec<u8>)>> {
        let params = json!({"resource": wire::resource(&self.target)});
        let answer: ContentsAnswer = call(&self.program, "fixture_contents", params)?;
        let item = |item: Item| Ok((item.path.clone(), bytes(&item)?));
        answer.contents.into_iter().map(item).collect()
    }

    fn replace_original(&self) -> Plain<bool> {
        Ok(false)
    }

    fn change_original(&self, path: &ResourcePath, content: &[u8]) -> Plain<()> {
        let content = json!({"base64": base64::encode(content)});
        let resource = wire::resource(&self.target);
        let params = json!({"resource": resource, "path": path, "content": content});
        call::<serde::de::IgnoredAny>(&self.program, "fixture_change", params).map(drop)
    }

    fn work_through(&self, access: &Access, path: &ResourcePath, content: &[u8]) -> Plain<()> {
        let Some(cwd) = &access.cwd else {
            return Err("only a path can be worked through here".to_owned());
        };
        let root = plain(Dir::open(cwd.as_path()))?;
        let (parent, name) = plain(root.parent(path))?;
        let mut file = plain(parent.write_over(name, 0o644))?;
        plain(std::io::Write::write_all(&mut file, content))
    }
}
