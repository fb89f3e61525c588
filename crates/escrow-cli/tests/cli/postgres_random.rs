//! Random exchanges with a holder, beside the same ones with a server: texts and messages of every kind, in pipelines, in and out of
//! transactions, after errors. What a client is told is the same, frame by frame, but for what `norm` leaves out.

use crate::postgres::Shop;
use crate::postgres_exchanges::{FRAMES, python};

/// Which sessions are tried; each has four to sixteen batches. The tables of all of them are locked to the end.
const SEEDS: std::ops::Range<u32> = 0..120;

const RANDOM: &str = r#"
import random
TABLES = """DROP TABLE IF EXISTS made, late, child, parent, t, u CASCADE;
CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 5) g; CREATE TABLE u (a int);
CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent %s)"""
TEXTS = r"""
SELECT 1 | SELECT 'ü' | SELECT 1/0 | SELECT 1/(id-3) FROM t ORDER BY id | SELECT 'ü', 1/(id-3) FROM t ORDER BY id | SELEC | SELECT | SELECT 1 +
SELECT 'a | SELECT $$a$$ | SELECT * FROM nowhere | SELECT * FROM t ORDER BY id | TABLE u | SELECT count(*), sum(id) FROM t | SELECT E'\''
SELECT current_query() | VALUES (1), (2) | VALUES ('ü') | SELECT g FROM generate_series(1, 3) g | SELECT date '2020-01-02'
INSERT INTO t VALUES (10, 'x') | INSERT INTO t VALUES (11, 'ü') RETURNING id | INSERT INTO t VALUES (1, 'dup') | INSERT INTO t VALUES (1, 'düp') RETURNING *
DELETE FROM t WHERE id > 9 | UPDATE t SET v = 'y' WHERE id = 2 RETURNING v | INSERT INTO u VALUES (1), (2) | TRUNCATE u | DELETE FROM u
WITH x AS (DELETE FROM u RETURNING a) SELECT count(*) FROM x | INSERT INTO child VALUES (1, 99) | INSERT INTO parent VALUES (1)
INSERT INTO child VALUES (2, 1) | INSERT INTO parent VALUES (99) | DELETE FROM parent | DELETE FROM child
SET CONSTRAINTS ALL IMMEDIATE | SET CONSTRAINTS ALL DEFERRED | BEGIN | BEGIN | BEGIN | BEGIN READ ONLY | START TRANSACTION
COMMIT | COMMIT | END | ROLLBACK | ROLLBACK | ABORT | COMMIT AND CHAIN | ROLLBACK AND CHAIN | COMMIT AND NO CHAIN
SAVEPOINT a | SAVEPOINT b | RELEASE a | RELEASE SAVEPOINT b | ROLLBACK TO a | ROLLBACK TO SAVEPOINT b | SAVEPOINT ü
SET application_name = 'x1' | SET LOCAL search_path = pg_catalog | RESET application_name | SHOW application_name | SHOW extra_float_digits
SELECT set_config('application_name', 'x3', false) | SET extra_float_digits = 0 | RESET ALL | SET nonsense = 1 | SHOW search_path
SET search_path = public, pg_catalog | SET DateStyle = 'German' | SHOW transaction_read_only | SET TRANSACTION READ ONLY
PREPARE p1 AS SELECT 1 | PREPARE P1 AS SELECT 'big' | PREPARE p2 (int) AS SELECT $1 + 1 | PREPARE "Ü" AS SELECT 1 | PREPARE i1 AS INSERT INTO u VALUES (5)
EXECUTE p1 | EXECUTE "p1" | EXECUTE p2(3) | EXECUTE "Ü" | EXECUTE i1 | EXPLAIN EXECUTE nix | DEALLOCATE p1 | DEALLOCATE PREPARE p2
DEALLOCATE ALL | DEALLOCATE PREPARE ALL | DEALLOCATE n1 | DEALLOCATE "Ü"
DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id | FETCH c | FETCH 2 FROM c | MOVE c | CLOSE c | CLOSE ALL | FETCH d | DECLARE d SCROLL CURSOR FOR SELECT 'ü'
CREATE TABLE made (a int) | DROP TABLE made | CREATE TABLE late (a int UNIQUE DEFERRABLE INITIALLY DEFERRED) | INSERT INTO late VALUES (1)
DROP TABLE IF EXISTS late | ALTER TABLE u ADD COLUMN b int | ALTER TABLE u DROP COLUMN b | CREATE TABLE IF NOT EXISTS t (id int) | CREATE INDEX ON t (v)
COMMENT ON TABLE t IS 'ü' | COPY t TO STDOUT | COPY (SELECT 'ü') TO STDOUT | COPY nowhere TO STDOUT | EXPLAIN (COSTS off) SELECT 1
DO $$ BEGIN RAISE NOTICE 'n'; END $$ | DO $$ BEGIN RAISE EXCEPTION 'n'; END $$ | EXPLAIN (COSTS off) SELECT * FROM nowhere WHERE 'ü' = ''
"""
SEVERAL = r"""
SELECT 1; SELECT 2 | SELECT 1; SELECT 1/0; SELECT 2 | INSERT INTO u VALUES (9); SELECT 1/0 | INSERT INTO u VALUES (8); SELECT 'ü'; COMMIT
BEGIN; INSERT INTO u VALUES (7); COMMIT; SELECT 1/0 | BEGIN; SELECT 1 | COMMIT; SELECT 1 | ROLLBACK; BEGIN; SELECT 'ü' | SELECT 1; SAVEPOINT a
SELECT 1; DECLARE c CURSOR FOR SELECT 1; FETCH c | SAVEPOINT a; SELECT 1 | BEGIN; SAVEPOINT a; SELECT 1/0 | SELECT 1; COMMIT | SELECT 1; ROLLBACK
INSERT INTO u VALUES (6); ROLLBACK; SELECT 3 | PREPARE p1 AS SELECT 1; EXECUTE p1 | INSERT INTO child VALUES (3, 98); SELECT 1
INSERT INTO child VALUES (3, 98); COMMIT; SELECT 1 | SELECT 1; INSERT INTO child VALUES (4, 97) | SELECT 1;;SELECT 2; | COMMIT; COMMIT
BEGIN; BEGIN; ROLLBACK; ROLLBACK | LOCK TABLE t IN SHARE MODE; SELECT 1 | SELECT 'ü'; INSERT INTO child VALUES (7, 77) | SELECT 1 AS a \; SELECT 2
FETCH ALL FROM c; CLOSE c | PREPARE p3 AS SELECT nowhere | PREPARE p3 AS SELECT 'ü' FROM nowhere | EXECUTE p2('ü')
"""
words = lambda text: [one.strip() for line in text.strip().split("\n") for one in line.split(" | ")]
TEXTS, SEVERAL = words(TEXTS), words(SEVERAL)
COPIES = ["COPY t FROM STDIN", "COPY u FROM STDIN", "COPY u FROM STDIN (NULL 'ü')", "COPY nowhere FROM STDIN"]
def batch(r):
    kind, name, portal = r.random(), lambda: r.choice(["", "", "", "n1", "n2"]), lambda: r.choice(["", "", "", "o1", "o2"])
    if kind < .45: return [Q(r.choice(TEXTS + SEVERAL)) for _ in range(r.choice([1, 1, 1, 2]))]
    if kind < .52:
        data = r.choice([b"20\tz\n", b"5\n", b"bad\tworse\tworst\n", b""])
        end = frame("d", data) * bool(data) + r.choice([frame("c"), frame("f", b"no\0")])
        text = r.choice(COPIES)
        if r.random() < .5: return [P(text) + B() + E() + end + S]
        return [Q(r.choice([text, "SELECT 1; COPY u FROM STDIN; SELECT 2"])) + end]
    said = []
    for _ in range(r.randint(1, 7)):
        one, (n, p) = r.random(), (name(), portal())
        if one < .35: said.append(P(r.choice(TEXTS), n) + B(n, p) + D(p) * r.choice([0, 1]) + E(p, r.choice([0, 0, 0, 1, 2])))
        elif one < .5: said.append(P(r.choice(TEXTS), n))
        elif one < .62: said.append(B(n, p))
        elif one < .72: said.append(E(p or "o1", r.choice([0, 0, 1])))
        elif one < .78: said.append(D(p or "o2"))
        elif one < .82: said.append(frame("D", b"S" + n.encode() + b"\0"))
        elif one < .86: said.append(C(n))
        elif one < .88: said.append(frame("C", b"P" + p.encode() + b"\0"))
        elif one < .95: said.append(S)
        elif one < .97: said.append(H)
        else: said.append(Q(r.choice(TEXTS + SEVERAL)))
    return said + [S]
# An empty query, whose answer ends everything; before it whatever is open is ended.
END = S + frame("f", b"end\0") + S + Q("")
def norm(frames):
    found = []
    for at, (kind, body) in enumerate(frames):
        # What is set, which a holder also says when it goes back.
        if kind == "S": continue
        # That something has no effect outside of a transaction.
        if kind == "N" and b"C25P01" in body: continue
        # A statement that is not plain is described before it fails.
        if kind == "T" and frames[at + 1][0] == "E": continue
        if kind == "T":
            columns = struct.unpack(">h", body[:2])[0]
            rest, body = body[2:], []
            for _ in range(columns):
                name, rest = rest.split(b"\0", 1)
                # Tables have other numbers.
                body.append((name, rest[4:18]))
                rest = rest[18:]
        # Why a portal cannot be carried out.
        if kind == "E" and {b"C34000", b"C25P02", b"C55000", b"C3B001"} & set(body): body = "not now"
        found.append((kind, body))
    return found
def told(one):
    found = []
    while ("I", b"") not in found or found[-1][0] != "Z": found += one.answers()
    return norm(found)
for seed in range(int(sys.argv[3]), int(sys.argv[4])):
    r = random.Random(seed)
    late = r.choice(["", "DEFERRABLE INITIALLY DEFERRED"])
    for url in sys.argv[1:3]:
        made = Raw(url, "application_name", "made").say(Q(TABLES % late))
        assert not [one for one in made if one[0] == "E"], (seed, made)
    both = [Raw(url, "application_name", "random") for url in sys.argv[1:3]]
    for _ in range(r.randint(4, 16)):
        said = batch(r)
        for one in both: one.link.sendall(b"".join(said) + END)
        wanted, found = map(told, both)
        assert wanted == found, (seed, said, wanted, found)
    for one in both: one.link.close()
"#;

#[test]
fn random_exchanges_are_answered_as_by_a_server() {
    let shop = Shop::new(true);
    shop.server
        .sql("postgres", "CREATE DATABASE beside TEMPLATE shop");
    let url = shop.plan("try");
    let seeds = [SEEDS.start, SEEDS.end].map(|seed| seed.to_string());
    python(
        &[FRAMES, RANDOM].concat(),
        &[
            &shop.server.url("postgres", "beside"),
            &url,
            &seeds[0],
            &seeds[1],
        ],
    );
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}
