//! The checked-in table of messages, made by the example `gen_protobuf`.

use std::{collections::HashMap, sync::LazyLock};

use serde_json::Value;

/// A message of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageId(usize);

/// How often a field occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    One,
    List,
    /// Entries of a text key and a value.
    Map,
}

/// What a field holds and how JSON shows it.
#[derive(Clone, Debug)]
pub(super) enum FieldKind {
    Text,
    Bool,
    Integer,
    Double,
    /// Base64 in JSON.
    Bytes,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// JSON as bytes.
    Json,
    /// A list of texts, wrapped in a message.
    Texts,
    /// A schema, or a flag (`list` is `None`), or a list.
    OneOf {
        choice: MessageId,
        list: Option<Box<FieldKind>>,
    },
    Message(MessageId),
}

/// One field of a message.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) kind: FieldKind,
    pub(super) repeat: Repeat,
    /// JSON shows it even when it is zero.
    pub(super) pointer: bool,
    /// Its fields belong to the message around it.
    pub(super) inline: bool,
}

struct Table {
    kinds: HashMap<(String, String), MessageId>,
    delete_options: Option<MessageId>,
    messages: Vec<HashMap<u32, Field>>,
}

/// The message of a kind. Every group has DeleteOptions of its own, all of one form.
pub(super) fn message_of(api_version: &str, kind: &str) -> Option<MessageId> {
    if kind == "DeleteOptions" {
        return TABLE.delete_options;
    }
    TABLE
        .kinds
        .get(&(api_version.to_owned(), kind.to_owned()))
        .copied()
}

/// A field by its number.
pub(super) fn field_of(message: MessageId, number: u32) -> Option<&'static Field> {
    TABLE.messages.get(message.0)?.get(&number)
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let file: Value = serde_json::from_str(include_str!("table.json"))
        .expect("the table is checked in and a test reads it");
    Table::read(&file)
});

impl Table {
    fn read(file: &Value) -> Self {
        let rows: Vec<(&String, &Value)> =
            file["messages"].as_object().into_iter().flatten().collect();
        let ids: HashMap<&str, MessageId> = rows
            .iter()
            .enumerate()
            .map(|(index, (name, _))| (name.as_str(), MessageId(index)))
            .collect();
        let messages = rows
            .iter()
            .map(|(_, fields)| {
                let fields = fields.as_array().into_iter().flatten();
                fields.filter_map(|row| read_field(row, &ids)).collect()
            })
            .collect();
        let kinds: HashMap<(String, String), MessageId> = file["kinds"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|row| {
                let text = |index: usize| row[index].as_str();
                let id = *ids.get(text(2)?)?;
                Some(((text(0)?.to_owned(), text(1)?.to_owned()), id))
            })
            .collect();
        let delete_options = ids.get("meta.v1.DeleteOptions").copied();
        Self {
            kinds,
            delete_options,
            messages,
        }
    }
}

/// `[number, name, type, flags]`.
fn read_field(row: &Value, ids: &HashMap<&str, MessageId>) -> Option<(u32, Field)> {
    let number = u32::try_from(row[0].as_u64()?).ok()?;
    let flags = row[3].as_str()?;
    let repeat = match flags.chars().next() {
        Some('r') => Repeat::List,
        Some('m') => Repeat::Map,
        _ => Repeat::One,
    };
    let schema = ids.get("apiextensions.v1.JSONSchemaProps").copied();
    let kind = match row[2].as_str()? {
        "string" => FieldKind::Text,
        "bool" => FieldKind::Bool,
        "int32" | "int64" => FieldKind::Integer,
        "double" | "float" => FieldKind::Double,
        "bytes" => FieldKind::Bytes,
        "meta.v1.Time" => FieldKind::Time,
        "meta.v1.MicroTime" => FieldKind::MicroTime,
        "resource.Quantity" => FieldKind::Quantity,
        "intstr.IntOrString" => FieldKind::IntOrString,
        "meta.v1.FieldsV1" | "runtime.RawExtension" | "apiextensions.v1.JSON" => FieldKind::Json,
        "apiextensions.v1.JSONSchemaPropsOrBool" => FieldKind::OneOf {
            choice: schema?,
            list: None,
        },
        "apiextensions.v1.JSONSchemaPropsOrArray" => {
            let list = Some(Box::new(FieldKind::Message(schema?)));
            FieldKind::OneOf {
                choice: schema?,
                list,
            }
        }
        "apiextensions.v1.JSONSchemaPropsOrStringArray" => FieldKind::OneOf {
            choice: schema?,
            list: Some(Box::new(FieldKind::Text)),
        },
        name if name.ends_with(".ExtraValue") => FieldKind::Texts,
        name => FieldKind::Message(*ids.get(name)?),
    };
    let field = Field {
        name: row[1].as_str()?.to_owned(),
        kind,
        repeat,
        pointer: flags.contains('p'),
        inline: flags.contains('i'),
    };
    Some((number, field))
}
