"""What the dashboard runs and remembers, without Streamlit."""
