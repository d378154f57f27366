//! Tests functions with arguments of all kinds. The expected results were compared with Kyoto
//! Tycoon 0.9.56.

use std::sync::Arc;
use todana::Db;
use todana_script::{Interpreter, Program, ScriptOptions};

/// Asserts the results of expressions, written as text.
fn assert_results(expressions: &[(&str, &str)]) {
    let text = r#"kt = __kyototycoon__ db = kt.db
        local function show(value)
          if type(value) == "string" then return (("%q"):format(value):gsub("[^\32-\126]", function(c) return ("\\%d"):format(c:byte()) end)) end
          if type(value) ~= "table" then return tostring(value) end
          local out, len = {}, table.maxn(value)
          for place = 1, len do out[place] = show(value[place]) end
          return "{" .. table.concat(out, ",") .. "}"
        end
        local function all(...)
          local out = {}
          for place = 1, select('#', ...) do out[place] = show((select(place, ...))) end
          return table.concat(out, " ")
        end
        function e(of) local e = (of or db):error() return e:code() .. ":" .. e:message() end
        function go(input, output) db:clear() output.is = all(assert(loadstring("return " .. input.text))()) return 0 end"#;
    let program = Program::new("test.lua", text.as_bytes()).unwrap();
    let databases: Vec<Arc<dyn todana_script::ScriptDatabase>> =
        vec![Arc::new(Db::open("*").unwrap()), Arc::new(Db::open("two=%").unwrap())];
    let mut interpreter = Interpreter::new(&program, databases, 0, &ScriptOptions::default()).unwrap();
    for (expression, expected) in expressions {
        let outcome = interpreter.call(b"go", [(&b"text"[..], expression.as_bytes())]).unwrap();
        assert_eq!(outcome.error, None, "{expression}");
        assert_eq!(String::from_utf8_lossy(&outcome.output[&b"is"[..]]), *expected, "{expression}");
    }
}

#[test]
fn argument_of_another_type_counts_as_absent() {
    assert_results(&[
        (r#"db:set("k", "v", "x"), (db:get("k"))"#, r#"true "v""#),
        (r#"db:increment("k", "x"), db:increment("k", {}), db:increment("k", 5, "try")"#, "0 0 5"),
        (r#"db:cas("k", true, "a"), (db:get("k"))"#, r#"true "a""#),
        (r#"#db:match_prefix("", "x"), db:synchronize(true, "x"), db:occupy(true, 5)"#, "0 true true"),
        (r#"db:synchronize(true, {}), e()"#, r#"false "8:postprocessing failed""#),
        (r#"db:merge({ "x" })"#, "true"),
        (r#"kt.bit("and", "x", 1), kt.bit("or", 1, nil), kt.sleep("x")"#, "0 1"),
        (r#"kt.strstr("a", "a", true), kt.regex("a", "a", {}), kt.split("a", true)"#, r#"1 true {"a"}"#),
        (r#"kt.hash_fnv(nil), kt.log("info", nil)"#, "nil"),
        (
            r#"kt.Error:new(-1, 5):message(), kt.Error:new():message(), tostring(kt.Error:new("x", "m"))"#,
            r#""5" "error" "success: m""#,
        ),
    ]);
}

#[test]
fn no_record_is_one_nil() {
    assert_results(&[
        (r#"db:get("none")"#, "nil"),
        (r#"db:seize("none")"#, "nil"),
        (r#"db:cursor():get()"#, "nil"),
        (r#"db:cursor():seize()"#, "nil"),
        (r#"db:pairs()()"#, "nil"),
        (r#"db.none"#, "nil"),
    ]);
}

#[test]
fn failing_callback_changes_nothing_and_is_ignored() {
    assert_results(&[
        (
            r#"db:set("k", "v"), db:accept("k", function() error("oops") end), (db:get("k"))"#,
            r#"true true "v""#,
        ),
        (r#"db:set("k", "v"), db:iterate(function() error("oops") end), (db:get("k"))"#, r#"true true "v""#),
        (r#"db:accept_bulk({ "k" }, function() error("oops") end), db:count()"#, "true 0"),
        (r#"db:synchronize(true, function() error("oops") end), e()"#, r#"false "8:postprocessing failed""#),
        (r#"db:occupy(true, function() error("oops") end), e()"#, r#"false "8:processing failed""#),
        (
            r#"db:set("k", "v"), db:mapreduce(function() error("oops") end, print), e()"#,
            r#"true false "8:checker failed""#,
        ),
        (
            r#"db:set("k", "v"), db:mapreduce(function(k, v, emit) return emit() end, print), e()"#,
            r#"true false "8:checker failed""#,
        ),
        // Errors of a function that the script calls itself are not ignored.
        (r#"(pcall(db.transaction, db, function() error("oops") end))"#, "false"),
    ]);
}

#[test]
fn numbers_in_tables_have_six_digits() {
    assert_results(&[
        (r#"kt.arraydump({ 1, 2.5, "x" })"#, r#""\11\82.500000\1x""#),
        (r#"kt.arraydump({ "a", nil, "b" })"#, r#""\1a\1b""#),
        (r#"db:set_bulk({ [2.5] = "y" }), (db:get("2.500000"))"#, r#"1 "y""#),
        (r#"kt.pack("C*", { 1, nil, 2 })"#, r#""\1\000\2""#),
    ]);
}

#[test]
fn patterns_are_posix_and_dollar_escapes() {
    assert_results(&[
        (
            r#"kt.regex("5", "\\d"), kt.regex("a\nb", "a.b"), kt.regex("a&&b", "[a&&b]+$"), kt.regex("\\", "[\\]")"#,
            "false true true true",
        ),
        (
            r#"kt.regex("abc", "(b)", "$$1"), kt.regex("abc", "(b)", "$"), kt.regex("abc", "b", "$x")"#,
            r#""a$1c" "ac" "axc""#,
        ),
        (r#"kt.regex("abc", "", "Y"), kt.regex("abc", "$", "Y")"#, r#""abc" "abcY""#),
        (r#"db:set("5", ""), db:match_regex("\\d"), db:match_regex("[[:digit:]]")"#, r#"true {} {"5"}"#),
    ]);
}

#[test]
fn databases_have_names_and_pointers() {
    assert_results(&[
        (r#"kt.dbs["*"]:set("k", "v"), (db:get("k")), kt.dbs.two:count(), #kt.dbs"#, r#"true "v" 0 2"#),
        (
            r#"(function() local p = kt.DB:new_ptr() local a, b = kt.DB:new(p), kt.DB:new(p)
                return a:open("*"), a:set("k", "v"), b:get("k"), b:close(), a:count(), kt.DB:delete_ptr(p) end)()"#,
            r#"true true "v" true -1 nil"#,
        ),
        (
            r#"kt.DB:new():open(), kt.DB:process(function() end), kt.DB:new_ptr() == kt.DB:new_ptr()"#,
            "true nil false",
        ),
        (r#"tostring((function() local c = db:cursor() c:disable() return c end)())"#, r#""(disabled)""#),
    ]);
}

/// After `jump_back`, a cursor lost its direction: a loop from the end saw only one record.
#[test]
fn cursor_keeps_its_direction() {
    let walk = |kind: &str, start: &str| {
        format!(
            r#"(function() local d = kt.DB:new() d:open("{kind}") for _, k in ipairs{{"a","b","c","d"}} do d:set(k, k) end
            local c, all = d:cursor(), "" {start} while true do local k = c:get_key(true) if not k then break end all = all .. k end
            return all end)()"#
        )
    };
    for (kind, start, all) in [
        ("%", "c:jump_back()", r#""dcba""#),
        ("%", "c:jump('c') c:step_back()", r#""ba""#),
        ("%", "c:jump_back('c') c:set_value('x', nil, true)", r#""ba""#),
        ("%", "c:jump_back('c') c:remove()", r#""ba""#),
        ("%", "c:jump_back('c') c:accept(function() end, true, true)", r#""ba""#),
        ("%", "c:jump_back('c') c:step()", r#""d""#),
        ("+", "c:jump_back('c')", r#""cd""#),
    ] {
        assert_results(&[(&walk(kind, start), all)]);
    }
}

/// The constants represent the words `try` and `set`. A value that is not a number is not
/// overwritten.
#[test]
fn increment_takes_its_origin_as_the_original() {
    assert_results(&[
        (r#"db:increment("n", 3, math.huge), db:increment("n", 4, 9223372036854775807)"#, "3 4"),
        (r#"db:increment("m", 3, -math.huge), db:increment_double("m", 3, -math.huge)"#, "nil nil"),
        (r#"db:set("x", "abc"), db:increment("x", 3, math.huge), (db:get("x"))"#, r#"true nil "abc""#),
    ]);
}

#[test]
fn the_rest_is_as_in_the_original() {
    assert_results(&[
        (r#"db:transaction(function() db:set("k", "v") return 1 end), (db:get("k"))"#, r#"true "v""#),
        (
            r#"db:accept("k", function(...) return "n" .. select('#', ...) end), (db:get("k"))"#,
            r#"true "n2""#,
        ),
        (
            r#"db:set("banana", ""), #db:match_similar("a"), #db:match_similar("a", 1), #db:match_similar("a", -1)"#,
            "true 1 0 1",
        ),
        (
            r#"kt.atoix("1e3"), kt.atoix("inf"), kt.atoix("1.5k"), kt.atoix(" -2.7")"#,
            "1.1529215046068e+18 0 1536 -2",
        ),
        (r#"kt.unpack("sc", "A"), kt.unpack("zc", "A"), kt.unpack("c*C", "AB")"#, "{} {65} {65,66}"),
    ]);
}
