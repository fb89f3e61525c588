//! Django's ORM, unchanged, on the copy of a SQLite database: it runs the migrations of an application whose files are a
//! member of the same plan.

use crate::sqlite::sql;
use crate::*;

pub(crate) const MANAGE: &str = "import sys, django
from django.conf import settings
from django.core.management import call_command
settings.configure(INSTALLED_APPS=['shop'], DEFAULT_AUTO_FIELD='django.db.models.BigAutoField',
    DATABASES={'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': '../data/app.db'}})
sys.path.insert(0, '.')
django.setup()
from shop import models
exec(sys.argv[1])
";

pub(crate) const BEFORE: &str = "from django.db import models
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

// rule C1, Q2, Q5
#[test]
fn django_migrates_the_copy_and_both_its_files_and_its_tables_are_released() {
    let world = World::new();
    let (app, data) = (world.dir("app"), world.dir("data"));
    world.dir("app/shop");
    write(app.join("manage.py"), MANAGE);
    write(app.join("shop/__init__.py"), "");
    write(app.join("shop/models.py"), BEFORE);
    let django = |code: &str| {
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-B", "manage.py", code]).current_dir(&app);
        let out = python.output().expect("python3 starts");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{code}: {said}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    django(&format!(
        "{MIGRATE}; [models.Item.objects.create(name=n) for n in ('a', 'b', 'c')]"
    ));
    let cli = Cli::new(&world, &binary());
    cli.ok("plan create try --resource ./app --resource data/app.db");
    put(&cli, "try app shop/models.py", AFTER);
    let work = format!(
        "{MIGRATE}; models.Item.objects.filter(name='a').update(price=7); models.Item.objects.get(name='b').delete()
i = models.Item.objects.create(name='d'); models.Order.objects.create(item=i)"
    );
    let inside = cli.clone().cwd(app.clone());
    inside.ok([
        "run",
        "--plan",
        "try",
        "--",
        "/usr/bin/python3",
        "-B",
        "manage.py",
        &work,
    ]);
    assert_eq!(django(CHECK), "a b c\n", "nothing reached the original");
    cli.ok("commit try");
    assert_eq!(django(CHECK), "a c d\n");
    let at = data.join("app.db");
    let sums = "SELECT sum(price) FROM shop_item; SELECT count(*) FROM shop_order; PRAGMA integrity_check; PRAGMA foreign_key_check";
    assert_eq!(sql(&at, sums), "17\n1\nok");
    cli.ok("undo try");
    assert_eq!(django(CHECK), "a b c\n", "files and tables of before");
    assert_eq!(sql(&at, "PRAGMA integrity_check"), "ok");
}
