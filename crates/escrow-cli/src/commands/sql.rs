//! `escrow sql`: runs one statement in a sandbox that is a database.

use std::ffi::OsString;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Run one SQL statement in a sandbox that is a database
///
/// A terminal gets a table, anything else one JSON document: the columns, each row as an object, and how many rows were
/// changed. Of columns with the same name the second is `NAME_2`. Bytes are `{"$blob": "hex"}`. The original is not touched.
#[derive(Debug, Args)]
#[command(
    override_usage = "escrow sql [PLAN] <RESOURCE> <STATEMENT>",
    after_help = "Examples:\n  escrow sql db 'SELECT * FROM orders'\n  escrow sql try db \"UPDATE orders SET status = 'paid'\""
)]
pub(crate) struct SqlArgs {
    /// Plan (the open one of this directory if left out), resource, statement
    #[arg(num_args = 2..=3, required = true, value_name = "[PLAN] RESOURCE STATEMENT")]
    words: Vec<OsString>,
}

impl SqlArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let (plan, resource, rest) = context.target(&self.words, 1, ui)?;
        let Some(statement) = rest[0].to_str() else {
            return Err(Failure::usage("the statement is not UTF-8"));
        };
        if statement
            .trim_matches(|c: char| c == ';' || c.is_whitespace())
            .is_empty()
        {
            return Err(Failure::usage("the statement is empty"));
        }
        let found = context.manager.query(&plan, &resource, statement)?;
        if ui.is_json() || !ui.is_terminal() {
            let columns = told_apart(&found.columns);
            let row = |row: &Vec<Value>| {
                let named = columns.iter().cloned().zip(row.iter().cloned());
                Value::Object(named.collect::<Map<_, _>>())
            };
            let rows: Vec<Value> = found.rows.iter().map(row).collect();
            ui.document(json!({"columns": columns, "rows": rows, "changed": found.changed}));
            return Ok(());
        }
        if found.columns.is_empty() {
            ui.say(&format!("{} rows changed", found.changed));
            return Ok(());
        }
        let text = |value: &Value| match value {
            Value::Null => "NULL".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let rows = found.rows.iter();
        ui.columns(
            &found.columns,
            rows.map(|row| row.iter().map(text).collect()),
        );
        Ok(())
    }
}

/// The names of columns as keys of an object: one that is there already gets a number, which makes it no other column's name.
fn told_apart(columns: &[String]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for name in columns {
        let mut key = name.clone();
        let mut number = 1;
        while keys.contains(&key) || (number > 1 && columns.contains(&key)) {
            number += 1;
            key = format!("{name}_{number}");
        }
        keys.push(key);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::told_apart;

    #[test]
    fn no_value_of_a_row_is_lost_to_another_column_of_its_name() {
        let names = ["a", "a_2", "a", "b", "a"].map(str::to_owned);
        assert_eq!(told_apart(&names), ["a", "a_2", "a_3", "b", "a_4"]);
        assert_eq!(told_apart(&["".to_owned(), "".to_owned()]), ["", "_2"]);
    }
}
