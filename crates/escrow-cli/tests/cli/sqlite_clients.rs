//! Django's ORM, unchanged, on the copy of a SQLite database: it runs the migrations of an application whose files are a
//! member of the same plan.

use crate::sqlite::sql;
use crate::*;

const MANAGE: &str = "import sys, django
from django.conf import settings
from django.core.management import call_command
settings.configure(INSTALLED_APPS=['shop'], DEFAULT_AUTO_FIELD='django.db.models.BigAutoField',
    DATABASES={'default': {HERE}})
sys.path.insert(0, '.')
django.setup()
from shop import models
exec(sys.argv[1])
";

const BEFORE: &str = "from django.db import models
class Item(models.Model):
    name = models.CharField(max_length=20, unique=True)
";

pub(crate) const AFTER: &str = "from django.db import models
class Item(models.Model):
    name = models.CharField(max_length=20, unique=True)
    price = models.IntegerField(default=5)
class Order(models.Model):
    item = models.ForeignKey(Item, on_delete=models.CASCADE)
    class Meta: indexes = [models.Index(fields=['item', 'id'])]
";

pub(crate) const MIGRATE: &str =
    "call_command('makemigrations', 'shop', verbosity=0); call_command('migrate', verbosity=0)";

/// Django's own word on whether files and database belong together, and what it finds.
pub(crate) const CHECK: &str = "call_command('migrate', check_unapplied=True, verbosity=0)
call_command('makemigrations', 'shop', check_changes=True, dry_run=True, verbosity=0)
print(*[i.name for i in models.Item.objects.order_by('id')])";

/// An application.
pub(crate) struct Django {
    app: PathBuf,
    /// Where the server of its database is, if it has one.
    host: PathBuf,
}

impl Django {
    /// One with three items in a database, of which these are the settings.
    pub(crate) fn new(app: &Path, database: &str, host: PathBuf) -> Self {
        fs::create_dir(app.join("shop")).expect("it is new");
        write(app.join("manage.py"), MANAGE.replace("HERE", database));
        write(app.join("shop/__init__.py"), "");
        write(app.join("shop/models.py"), BEFORE);
        let app = app.to_owned();
        let this = Self { app, host };
        let items = "[models.Item.objects.create(name=n) for n in ('a', 'b', 'c')]";
        this.run(&format!("{MIGRATE}; {items}"));
        this
    }

    #[track_caller]
    pub(crate) fn run(&self, code: &str) -> String {
        let mut python = Command::new("/usr/bin/python3");
        python
            .args(["-B", "manage.py", code])
            .env("PGHOST", &self.host);
        output_of(python.current_dir(&self.app))
    }

    /// The same in the plan `try`.
    #[track_caller]
    pub(crate) fn run_inside(&self, cli: &Cli, code: &str) {
        let line = words("run --plan try -- /usr/bin/python3 -B manage.py");
        let cli = cli.clone().cwd(&self.app);
        cli.ok([line, vec![code.into()]].concat());
    }
}

// rule C1, Q2, Q5
#[test]
fn django_migrates_the_copy_and_both_its_files_and_its_tables_are_released() {
    let world = World::new();
    let (app, data) = (world.dir("app"), world.dir("data"));
    let engine = "'ENGINE': 'django.db.backends.sqlite3', 'NAME': '../data/app.db'";
    let django = Django::new(&app, engine, PathBuf::new());
    let cli = Cli::new(&world, &binary());
    cli.ok("plan create try --resource ./app --resource data/app.db");
    put(&cli, "try app shop/models.py", AFTER);
    let work = format!(
        "{MIGRATE}; models.Item.objects.filter(name='a').update(price=7); models.Item.objects.get(name='b').delete()
i = models.Item.objects.create(name='d'); models.Order.objects.create(item=i)"
    );
    django.run_inside(&cli, &work);
    assert_eq!(django.run(CHECK), "a b c\n", "nothing reached the original");
    cli.ok("commit try");
    assert_eq!(django.run(CHECK), "a c d\n");
    let at = data.join("app.db");
    let sums = "SELECT sum(price) FROM shop_item; SELECT count(*) FROM shop_order; PRAGMA integrity_check; PRAGMA foreign_key_check";
    assert_eq!(sql(&at, sums), "17\n1\nok");
    cli.ok("undo try");
    assert_eq!(django.run(CHECK), "a b c\n", "files and tables of before");
    assert_eq!(sql(&at, "PRAGMA integrity_check"), "ok");
}
