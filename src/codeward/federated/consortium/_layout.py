"""Names of what a consortium's folders hold; commands, texts and programs all take them from here."""

#: Names the server's folder in the environment of the SuperLink.
CONSORTIUM = "CODEWARD_CONSORTIUM"

ROSTER_FILE = "users.json"
PLAN_FOLDER = "federation"
APP_FOLDER = "app"
PUBLIC_KEYS = "keys"
FLOWER_HOME = "flower"
ENVIRONMENT_FILE = "environment.sh"
AUTHORITY_FILE = "ca.crt"
AUTHORITY_KEY = "ca.key"
SERVER_CERTIFICATE = "server.crt"
SERVER_KEY = "server.key"
NODE_KEY = "node.key"
NODE_PUBLIC_KEY = "node.pub"
DATA_FILE = "data.npz"
SUPERLINK_STATE = "superlink.db"

#: Name of the SuperLink in the Flower configuration that init writes.
CONNECTION = "consortium"
