import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # synthetic_summary, which the tests of lethe.paper use too
